"""Environments on a worker for a host that vanishes: they end by themselves, and stay while it pings."""

from __future__ import annotations

import json
import math
import pickle
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from digirl_dist.child_process import environment
from digirl_dist.errors import TrajectoryError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.user_code.packing import pack
from digirl_dist.worker_program.environments import PING, PING_S, EnvHost, write_frame
from digirl_dist.worker_program.sessions import EmulatorSession

_PROGRAM = """
import sys
from digirl_dist.worker_program import environments
environments._ORPHAN_S = 4.0
sys.exit(environments.guarded(environments._serve, None))
"""


@pytest.mark.nightly
@pytest.mark.component
def test_environments_of_a_host_that_fell_silent_end_and_stay_while_it_pings() -> None:
    """Its stdin stays open, as that of a server that has not yet noticed the loss of its client."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environment(), stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None
        pinged_until = time.monotonic() + 12.0
        while time.monotonic() < pinged_until:
            program.stdin.write(PING)
            program.stdin.flush()
            time.sleep(0.5)
        assert program.poll() is None
        program.wait(120.0)
    assert PING_S < 120.0 / 2


@pytest.mark.component
@pytest.mark.parametrize("program", ["environments", "sessions"])
def test_environments_of_a_host_whose_connection_breaks_in_the_middle_of_a_frame_end(program: str) -> None:
    command = [sys.executable, "-m", f"digirl_dist.worker_program.{program}"]
    said = write_frame({"hosted": pickle.dumps(list)}) + write_frame({"do": "step", "with": ["halves"] * 100})[:50]
    subprocess.run(command, env=environment(), input=said, timeout=60.0)


class Ticking(gymnasium.Env[Any, Any]):
    """Its timer interrupts whatever waits, as one that watches over a step does."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        return np.zeros(4_000_000, np.uint8), {}


@pytest.mark.component
def test_an_answer_comes_whole_though_signals_interrupt_its_sending() -> None:
    command, pipe = [sys.executable, "-m", "digirl_dist.worker_program.environments"], subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe) as there:
        assert there.stdin is not None and there.stdout is not None
        there.stdin.write(write_frame({"hosted": pack(partial(EnvHost, Ticking, 0))}))
        there.stdin.write(write_frame({"do": "add", "with": [(0, (None, None))]}))
        there.stdin.close()
        size = int.from_bytes(there.stdout.read(4), "big")
        time.sleep(0.5)  # the pipe is full meanwhile
        assert size > 4_000_000 and len(there.stdout.read(size)) == size


class Slow:
    """An emulator with a process of its own, which takes its time to close."""

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid))

    def step(self, action: Any) -> Any:
        """Nobody asks for one."""

    def close(self) -> None:
        time.sleep(4.0)


class Diverging:
    """An emulator whose first step has no number for a reward."""

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation("at rest")

    def step(self, action: Any) -> Transition:
        return Transition(Observation("far away"), math.nan, terminated=False)

    def close(self) -> None:
        pass


@pytest.mark.component
def test_a_session_passes_no_number_on_that_no_episode_may_have() -> None:
    """Trainers of other libraries would learn from it."""
    with closing(EmulatorSession(pack(Diverging), SlotLimits(), None, {})) as session:
        session.say('{"type": "reset", "data": {"task": {"id": "t"}, "seed": 0}}')
        with pytest.raises(TrajectoryError, match="the reward is nan, which is no finite number"):
            session.say('{"type": "step", "data": {"action": 0}}')


@pytest.mark.component
def test_nothing_is_left_of_a_session_whose_emulator_closes_slowly() -> None:
    session = EmulatorSession(pack(Slow), SlotLimits(), None, {})
    answer = json.loads(session.say('{"type": "reset", "data": {"task": {"id": "t"}, "seed": 0}}'))
    session.close()
    assert not psutil.pid_exists(int(answer["data"]["observation"]["text"]))
