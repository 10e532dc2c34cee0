"""Lies of valid content: their messages and files are what the types of this package read, and one costs a run little.

``script/chaos --lies-of-content`` tells all of them in each phase.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaos.content import CONTENT, HEIGHT, WIDTH, hang_up, longest
from chaos.costs import LEAST_SHARE, Cost, Scales
from chaos.ground import ground
from chaos.hostility import HOSTILE_LIMITS
from chaos.lab import Screens
from chaos.lies import LIES, Lie, Message, State, line
from chaos.rows import Rows, black, noise, with_private_chunk
from chaos.soak import MODES, grows
from chaos.stages import Phase
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import TrajectoryError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import PROTOCOL, Heartbeat, UnknownFile, decode_worker_message
from digirl_dist.settings import Inference, configuration
from digirl_dist.storage import episode_file
from digirl_dist.storage.digest import file_digest
from digirl_dist.tasks import Key, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.user_code.packing import pack

_SHARE = 0.001
"""Of the full size of a forged file."""
_KEY = [0, 3, "train"]
_HONEST: list[Message] = [
    {"type": "ready", "protocol": PROTOCOL, "package": "ab", "python": "3.11", "pid": 7, "machine": None},
    {"type": "working", "slots": 2, "reason": "", "held": []},
    {"type": "loaded", "version": 0},
    {"type": "acting", "slot": 0, "key": _KEY},
    {
        "type": "heartbeat",
        "doing": "waiting",
        "for_s": 0.1,
        "unheard_s": 0.1,
        "slots": [],
        "held": [],
        "order": 1,
        "in_service": 2,
    },
]
_LOAD = {"type": "load_policy", "version": 0, "tensors": {"w": ["ab" * 16, "float32", [2], None]}}
_LEASE = {
    "type": "lease",
    "order": 2,
    "tickets": [
        {"iteration": 0, "index": 5, "task": {"id": "rehearsal"}, "seed": 1, "policy_version": 0, "attempt": 0}
    ],
}


def _episode(path: Path, steps: int = 5, image: bytes | None = None) -> Trajectory:
    ticket = Ticket(0, 3, Task("rehearsal"), 7, 0)
    seen = Observation("", image, np.zeros(4, np.float32))
    taken = [Step(seen, 1, -1.0, 0.5, number == steps - 1, False) for number in range(steps)]
    episode = Trajectory(ticket, "e1", "w4", 0, taken, seen, success=True)
    episode_file.write(path, episode)
    return episode


def _ready(folder: JobFolder) -> Message:
    """Writes an episode into the folder; returns how it is announced."""
    path = folder.episode("e1")
    path.parent.mkdir(parents=True, exist_ok=True)
    _episode(path)
    manifest = {
        "run": "r",
        "key": _KEY,
        "attempt": 0,
        "policy_version": 0,
        "episode_id": "e1",
        "size": path.stat().st_size,
        "digest": file_digest(path),
        "slot": 0,
        "seconds": 1.0,
        "age_s": 0.0,
        "spent": {"step": 1.0},
    }
    return {"type": "episode_ready", "manifest": manifest}


def _said(lie: Lie, state: State, honest: list[Message]) -> Iterator[bytes]:
    """Yields what a liar says when the program says these, the host leases a ticket, and time goes by."""
    for message in honest:
        state.last[message["type"]] = json.loads(json.dumps(message))
        yield from [] if lie.say is None else lie.say(json.loads(json.dumps(message)), state)
    yield from () if lie.hear is None else lie.hear(_LEASE, state) or ()
    state.later = [(0.0, message) for _, message in state.later]
    if lie.now_and_then is not None and lie.now_and_then is not hang_up:
        yield from lie.now_and_then(state)


@pytest.mark.parametrize("lie", CONTENT.values(), ids=CONTENT)
def test_whatever_a_lie_of_content_says_is_a_message(lie: Lie, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    state = State(folder=folder, last={"load_policy": _LOAD})
    said = list(_said(lie, state, [*_HONEST, _ready(folder)]))
    for each in said:
        decode_worker_message(each)
    speaks = lie.say or lie.hear or lie.now_and_then not in (None, hang_up)
    assert bool(said) == bool(speaks)


FORGED = [lie for lie in CONTENT.values() if lie.forge is not None]


@pytest.mark.parametrize("lie", FORGED, ids=[lie.name for lie in FORGED])
def test_a_forged_file_is_one_that_the_host_reads(lie: Lie, tmp_path: Path) -> None:
    path = tmp_path / "e1.episode"
    honest = _episode(path, image=next(black(HEIGHT, WIDTH, 1)) if lie.screens else None)
    before, rows = path.read_bytes(), Rows.read(path)
    assert lie.forge is not None
    lie.forge(rows, _SHARE)
    rows.write(path)
    read = episode_file.read(path)
    assert path.read_bytes() != before
    assert (read.ticket, read.episode_id, read.worker) == (honest.ticket, honest.episode_id, honest.worker)
    assert read.steps[-1].ended and not any(step.ended for step in read.steps[:-1])


def test_an_episode_that_is_made_up_at_once_is_of_the_leased_ticket(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    state = State(folder=folder, last={"episode_ready": _ready(folder)})
    lie = CONTENT["episodes of one step, at once"]
    assert lie.hear is not None
    [said] = lie.hear(_LEASE, state) or ()
    manifest = json.loads(said)["manifest"]
    made = episode_file.read(folder.episode(manifest["episode_id"]))
    assert (made.ticket.key, made.ticket.seed, len(made.steps)) == (Key(0, 5), 1, 1)
    assert manifest["digest"] == file_digest(folder.episode(manifest["episode_id"]))


def test_a_late_episode_is_held_until_it_comes(tmp_path: Path) -> None:
    lie, state = CONTENT["each episode comes just in time"], State()
    assert lie.say is not None and lie.now_and_then is not None
    assert list(lie.say(_ready(JobFolder(tmp_path)), state)) == []
    [beat] = lie.say(json.loads(json.dumps(_HONEST[-1])), state)
    assert json.loads(beat)["held"] == [_KEY]
    assert list(lie.now_and_then(state)) == []


def test_pictures_of_liars_are_what_they_promise() -> None:
    guard = EpisodeGuard()
    shown = [*black(40, 30, 3), *noise(40, 30, 2)]
    assert len({*shown}) == 5
    for image in shown:
        guard.check_question(Observation("", image, None))
    for image in [with_private_chunk(shown[0], 1000), shown[0][:20]]:
        with pytest.raises(TrajectoryError):
            guard.check_question(Observation("", image, None))


def test_there_are_many_lies_of_content_in_each_phase() -> None:
    assert len(CONTENT) >= 25 and not set(CONTENT) & set(LIES)
    assert len(list(Phase)) == 3
    assert max(map(len, map(line, ({"held": [_KEY] * longest(Heartbeat, "held", 22)},)))) < 1 << 20
    assert longest(UnknownFile, "reason") <= 1 << 20


@pytest.mark.parametrize("screens", [False, True])
@pytest.mark.parametrize("phase", [Phase.collecting, Phase.learning])
def test_the_settings_of_a_phase_are_ones_that_there_are(phase: Phase, screens: bool) -> None:
    program = phase.program(screens)
    assert program.is_run
    composed = configuration.load("config/multimachine", "host", list(program.settings))
    assert composed.algorithm.entry_point == "chaos.lab:SlowLearner"


@pytest.mark.component
def test_the_emulator_with_screens_travels_to_workers(tmp_path: Path) -> None:
    runs = "import pickle, sys; made = pickle.load(sys.stdin.buffer)(); print(len(made.reset(None, 1).image))"
    ours = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", runs]
    said = subprocess.run(command, input=pack(Screens), capture_output=True, cwd=tmp_path, env=ours, timeout=300)
    assert said.stderr == b"" and int(said.stdout) > 1000


def _cost(**more: Any) -> Cost:
    return replace(Cost(Phase.learning, None, peak_mb=300.0, rate=10.0, pause_s=12.0), **more)


def test_a_budget_that_is_not_kept_is_told() -> None:
    alone = _cost()
    assert _cost().broken(alone) == []
    assert _cost(peak_mb=501.0).broken(alone) == ["201 MB more memory"]
    assert _cost(events_mb=1.5).broken(alone) == ["1.5 MB of events a minute"]
    assert _cost(pause_s=20.0).broken(alone) == ["the others at 69%"]
    assert _cost(rate=0.0).broken(alone) == ["the others at 0%"]
    assert _cost(ctrl_c_s=60.0).broken(alone) == ["Ctrl-C took 60 s"]
    assert _cost(rate=9.8).share(alone) > LEAST_SHARE


def test_a_soak_has_a_mode_for_each_way_to_run_for_long() -> None:
    assert {"run", "torchrun", "collect", "fleet", "viewer"} <= set(MODES)
    assert "trainer=torchrun" in MODES["torchrun"].command(10)
    assert MODES["fleet"].command(10)[:5] == ["-m", "chaos.notebook", "0", "8", "10"]
    assert grows("mb", 200.0, 207.0) and not grows("mb", 200.0, 205.0)
    assert grows("descriptors", 30, 33) and not grows("descriptors", 30, 31)


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.long(45)
def test_a_lie_of_content_costs_a_learning_run_little(sshd_is_installed: None) -> None:
    lie = CONTENT["a slot is long again and again"]
    with ground(4, Inference.worker, HOSTILE_LIMITS, has_small_disks=False) as here:
        cost = Scales(here, random.Random(0).randrange(2**31)).weigh(Phase.learning, lie, screens=False)
    assert cost.problems == []
    assert cost.rate > 0 and cost.pause_s > 0 and cost.peak_mb > 0
    assert 0 < cost.events_mb < 1.0
