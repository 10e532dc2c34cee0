"""``script/chaos --keys N``: kills a trainer, the host that it asks, worker programs, and all of them at once.

However often, each key is delivered once, groups are whole, and the store has one episode for each key and no other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.caller import GROUP
from chaos.ground import LIMITS, TESTS, Program, RunContext, ground
from chaos.invariants import Invariant
from chaos.machine import CLOCK, send
from chaos.processes import eventually
from chaos.trial import plan
from digirl_dist.child_process import SOURCE
from digirl_dist.settings import Inference
from digirl_dist.storage import episode_file, json_lines, parquet
from digirl_dist.trajectory import Trajectory

_MACHINES = 2
_EMULATOR = ("emulator=rehearsal", "emulator.reset_s=0.05", "emulator.step_s=0.05", "emulator.steps=6")
_GOES_ON_S = 180.0
"""Until something is delivered after a kill."""
_EARLY = 0.3
"""Of the kills: they do not wait for that."""
_END_S = 300.0
VICTIMS = {
    "serve": ("caller", "host", "worker", "all"),
    "fleet": ("caller", "worker", "all"),
}
"""By what the trainer asks: ``digirl-dist serve``, or a fleet of its own, where it is the host itself."""


class Trade:
    """A trainer and the host that it asks, on ``ground``; both live until they are killed."""

    def __init__(self, here: RunContext, kind: str) -> None:
        self._here = here
        self._kind = kind
        self._socket = here.folder / "door"
        self.notes = here.folder / "notes"
        self.notes.mkdir()
        caller = ["-m", "chaos.caller", str(self.notes)]
        if kind == "serve":
            command = ["-m", "digirl_dist", "serve", "--socket", str(self._socket)]
            here.program = Program(command, [*_EMULATOR, "agent=generic"], hydra=True)
            self._command = [*caller, "http", str(self._socket), str(here.run / "serve.token")]
        else:
            here.program = Program([*caller, "fleet"], _EMULATOR)
        self._caller: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts what does not run."""
        if self._here.is_down:
            self._here.start_host()
        if self._kind == "serve" and (self._caller is None or self._caller.poll() is not None):
            paths = os.pathsep.join([str(CLOCK), SOURCE, TESTS])
            with (self._here.folder / "caller.log").open("ab") as log:
                self._caller = subprocess.Popen(
                    [sys.executable, *self._command], env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log
                )

    def strike(self, victim: str, rng: random.Random) -> None:
        """Kills it, without a word, and starts it again."""
        if victim in ("worker", "all"):
            machines = self._here.machines if victim == "all" else [rng.choice(self._here.machines)]
            for machine in machines:
                send(machine.program(), signal.SIGKILL)
        if victim in ("host", "all") or (victim == "caller" and self._kind == "fleet"):
            self._here.kill_host()
        if victim in ("caller", "all"):
            self.kill_caller()
        self.start()

    def kill_caller(self) -> None:
        if self._caller is not None:
            self._caller.kill()
            self._caller.wait()

    @property
    def seen(self) -> int:
        """Grows with each delivery."""
        path = self.notes / "seen.jsonl"
        return path.stat().st_size if path.exists() else 0

    def ended_by_itself(self) -> str:
        """What the trainer, or the host, said when it ended though nobody killed it; empty if both live."""
        if self._kind == "serve" and self._caller is not None and self._caller.poll() is not None:
            return f"the caller: {_last_words(self._here.folder / 'caller.log')}"
        return f"the host: {_last_words(self._here.folder / 'host.log')}" if self._here.is_down else ""

    def finish(self) -> str:
        """Has the trainer take what it asked for; returns what went wrong."""
        (self.notes / "stop").touch()
        caller = self._caller if self._kind == "serve" else self._here.host
        assert caller is not None
        try:
            if status := caller.wait(_END_S):
                return f"the caller ended with status {status}: {self.ended_by_itself()}"
        except subprocess.TimeoutExpired:
            return f"the caller did not get all that it asked for: {self._here.why()}"
        if self._kind == "serve" and (ended := self._here.end_host()) not in (0, 130):
            return f"asked to end, the host ended with status {ended}"
        return ""


def _last_words(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-4:])


def strike_keys(kind: str, kills: int, seed: int) -> list[Invariant]:
    """Kills so many times, at moments that the seed draws; returns what holds."""
    rng, problems = random.Random(seed), list[str]()
    with ground(_MACHINES, Inference.worker, LIMITS, has_small_disks=False) as here:
        trade = Trade(here, kind)
        trade.start()
        try:
            for number, victim in enumerate(plan(VICTIMS[kind], kills, seed)):
                problems += _await_life(trade, rng)
                print(f"{number + 1:4d} {kind}: kill {victim}", flush=True)
                trade.strike(victim, rng)
            problems += [problem for problem in [trade.finish()] if problem]
        finally:
            trade.kill_caller()
            here.kill_host()
        judged = judge_keys(here.run, trade.notes, problems, f"{kills} kills")
        found = [Invariant(f"{kind}: {one.name}", one.checked, one.broken) for one in judged]
        if any(one.broken for one in found):
            here.keep()
        return found


def _await_life(trade: Trade, rng: random.Random) -> list[str]:
    """Waits for a delivery, mostly, and for a moment; starts again what ended by itself, and returns that."""
    before, problems = trade.seen, []
    if rng.random() >= _EARLY and not eventually(lambda: trade.seen > before or trade.ended_by_itself(), _GOES_ON_S):
        problems.append(f"nothing was delivered for {_GOES_ON_S:g} s")
    time.sleep(rng.uniform(0.0, 2.0))
    if said := trade.ended_by_itself():
        problems.append(said)
        trade.start()
    return problems


def judge_keys(run: Path, notes: Path, problems: list[str], checked: str) -> list[Invariant]:
    """Compares what the trainer noted with what the store has."""
    lines = json_lines.read(notes / "notes.jsonl")
    groups = [line for line in lines if "has" in line]
    asked = {line["asked"] for line in lines if "asked" in line}
    delivered = {key: episode for line in groups for key, episode in line["episodes"].items()}
    seen: dict[str, set[Any]] = defaultdict(set)
    for line in json_lines.read(notes / "seen.jsonl"):
        if line["episode"] is not None:
            seen[line["key"]].add((line["episode"], line["seed"], line["cursor"]))
    stored = list(_stored(run))
    counts = Counter(one.episode_id for one in stored)
    seeds = {one.episode_id: one.ticket.seed for one in stored}
    kept = {name: json_lines.DurableMap(run / name).values for name in ("rollouts.jsonl", "serve.jsonl")}
    return [
        Invariant("nothing ended by itself", checked, problems),
        Invariant("each group once, and whole", f"{len(groups)} groups", list(_odd_groups(groups, asked, seeds))),
        Invariant(
            "each key has one episode and one place",
            f"{len(seen)} keys",
            [f"{key} came as {sorted(found)}" for key, found in seen.items() if len(found) > 1],
        ),
        Invariant(
            "the store has these episodes and no other",
            f"{len(stored)} episodes",
            [f"{name} is there {counts[name]} times" for name in delivered.values() if counts[name] != 1]
            + [f"nobody was given {one.ticket.key}" for one in stored if one.episode_id not in delivered.values()],
        ),
        Invariant(
            "what was acknowledged is forgotten",
            f"{len(delivered)} keys",
            [f"{name}: {key}" for name, values in kept.items() for key in values if key],
        ),
    ]


def _odd_groups(groups: list[dict[str, Any]], asked: set[int], seeds: dict[str, int]) -> Iterator[str]:
    counts = Counter(line["has"] for line in groups)
    yield from (f"group {group} was asked for, and never had" for group in asked - counts.keys())
    for line in groups:
        episodes = line["episodes"]
        if counts[line["has"]] != 1 or len(episodes) != GROUP or len(set(episodes.values())) != GROUP:
            yield f"group {line['has']} came {counts[line['has']]} times: {json.dumps(episodes)}"
        if len({seeds.get(episode) for episode in episodes.values()}) != 1:
            yield f"group {line['has']} did not start alike"


def _stored(run: Path) -> Iterator[Trajectory]:
    """Yields every episode of the run folder, in files of pages and alone."""
    for path in sorted((run / "trajectories").glob("[0-9]*.parquet")):
        yield from parquet.read(path)
    for path in sorted((run / "trajectories" / ".landing").glob("[0-9]*/*" + episode_file.SUFFIX)):
        yield episode_file.read(path)
