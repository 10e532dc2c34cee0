"""Environments of a fleet in trainers that have a loop of their own: SkyRL's, TRL's GRPO, verifiers."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from package_environment import python_with
from process_watch import ssh_server
from tiny_model import TAPS

from digirl_dist.bridges.conversation import Conversation
from digirl_dist.bridges.openenv import openenv_fleet
from digirl_dist.bridges.sessions import Sessions, _Program, _Told
from digirl_dist.bridges.trl_environment import FleetEnvironment
from digirl_dist.errors import EmulatorError, WorkerError
from digirl_dist.settings import LimitSettings

pytestmark = pytest.mark.system

TESTS = Path(__file__).resolve().parent.parent
PHONE = ["dry_run=true", "emulator=phone", "task_set=easy", "max_steps=2"]


def test_skyrls_environments_play_on_when_a_worker_is_killed_and_raise_when_all_are() -> None:
    skyrl_gym = pytest.importorskip("skyrl_gym")
    from digirl_dist.bridges.skyrl import FleetTextEnv

    draws, returns = random.Random(0), []
    with openenv_fleet([*PHONE, "limits.episode_attempts=2"]) as fleet:
        skyrl_gym.register("phone", partial(FleetTextEnv, fleet))
        envs = [skyrl_gym.make("phone", env_config={}, extras={"split": "train", "index": 1}) for _ in range(2)]
        for episode in range(10):
            chats = [env.init([{"role": "system", "content": "Tap."}])[0] for env in envs]
            assert (chats[0] == chats[1] and "Open" in chats[0][1]["content"]) or "Go to" in chats[0][1]["content"]
            if episode == 5:
                ssh_server("localhost-0").send_signal(signal.SIGKILL)
            done, total = False, 0.0
            while not done:
                answers = [env.step(text) for env, text in zip(envs, [draws.choice(TAPS)] * 2, strict=True)]
                assert answers[0] == answers[1], "equal rows start alike, on every worker"
                done, total = answers[0]["done"], total + answers[0]["reward"]
            returns.append(total)
        assert fleet.moved and len(returns) == 10
        fleet._sessions._machines["localhost-1"].connection.close()
        with pytest.raises(EmulatorError, match="no worker is left|given up after 2"):
            envs[0].init([])
        for env in envs:
            env.close()


def test_trls_environment_has_a_tool_and_no_reward_once_it_is_lost() -> None:
    with openenv_fleet([*PHONE, "dry_run_workers=1", "limits.episode_attempts=2"]) as fleet:
        one, other = FleetEnvironment(fleet), FleetEnvironment(fleet, pictures=True)
        row = {"prompt": [{"role": "user", "content": "Do it."}], "split": "train", "index": 2}
        first = one.reset(**row)
        picture, told = other.reset(**row)
        assert told["text"] == first and picture["image"].size[0] > 0
        assert one.get_reward() == 0.0
        assert not one.act('{"type": "tap", "x": 0.9, "y": 0.99}').endswith("over.")
        assert one.act("anything").endswith("The episode is over.") and "is over" in one.act("more")
        fleet._sessions._machines["localhost-0"].connection.close()
        with pytest.raises(EmulatorError, match="given up after 2 .*localhost-0"):
            other.act("wait")
        assert other.get_reward() is None, "TRL leaves an episode without a reward out"
        with pytest.raises(EmulatorError, match="no worker is left"):
            other.reset(**row)


def test_a_worker_is_lost_as_soon_as_nothing_can_be_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the thread that reads its answers has noticed: else the next episode would begin there."""
    monkeypatch.setattr(_Program, "_read", lambda program: None)
    with openenv_fleet([*PHONE, "dry_run_workers=1", "limits.episode_attempts=1"]) as fleet:
        session = fleet._sessions.open({})
        fleet._sessions._machines["localhost-0"].connection.close()
        with pytest.raises(WorkerError) as error:
            session.say("{}", 1)
        fleet._sessions.lose(session, error.value)
        assert not fleet.workers


@pytest.mark.unit
def test_all_sessions_of_a_lost_worker_are_told_though_the_first_leaves_at_once() -> None:
    """Its thread goes on as soon as it hears of the loss."""

    class Leaving(queue.Queue[Any]):
        def put_nowait(self, item: Any) -> None:
            super().put_nowait(item)
            del program.told[1]

    gone = threading.Event()

    def frame(*_: object) -> None:
        gone.wait()
        raise WorkerError("w1", "it is gone")

    remote: Any = SimpleNamespace(name="w1", frame=frame, close=gone.set)
    program = _Program(remote)
    program.told[1] = Leaving()
    waiting = program.open(2)
    gone.set()
    assert isinstance(waiting.get(timeout=10), WorkerError)


@pytest.mark.unit
def test_workers_may_be_lost_while_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = [SimpleNamespace(name=name) for name in "ab"]
    sessions = Sessions(found, b"", LimitSettings(), 0)
    monkeypatch.setattr(sessions, "_count", lambda name: len([sessions._machines.pop("b", None)]))
    assert sessions.workers == {"a": 1, "b": 1}


def test_an_episode_of_trls_that_cannot_begin_has_no_reward_and_does_not_end_the_training() -> None:
    with openenv_fleet([*PHONE, "dry_run_workers=1"]) as fleet:
        env = FleetEnvironment(fleet)
        assert "has tasks 0 to" in env.reset(split="train", index=10**6) and env.get_reward() is None
        assert "is over" in env.act("wait") and env.get_reward() is None
        assert env.reset(split="train", index=1) and env.get_reward() == 0.0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_verifiers_own_client_and_server_run_ten_rounds_over_two_workers_of_which_one_is_killed(tmp_path: Path) -> None:
    wanted = "verifiers>=0.4,<0.5", "antlr4-python3-runtime==4.9.3"
    python = python_with("verifiers", *wanted, and_ours=True)
    done = subprocess.run(
        [python, TESTS / "verifiers_rounds.py", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent)))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert len(told["rounds"]) == 10 and all(ok and rewards for each in told["rounds"] for ok, rewards in each)
    assert told["lost"]["ok"] is False and told["lost"]["errors"] and told["lost"]["rewards"] == [None]


def test_what_answered_a_message_that_was_interrupted_answers_no_other() -> None:
    class Echo:
        """A worker's program that answers each session with what it said."""

        name = "w1"

        def __init__(self) -> None:
            self._frames: queue.SimpleQueue[_Told] = queue.SimpleQueue()

        def write(self, told: dict[str, Any]) -> None:
            if "say" in told:
                self._frames.put(_Told(told["session"], told["say"]))

        def frame(self, *_: Any) -> _Told:
            return self._frames.get()

        def close(self) -> None: ...

    def interrupted(timeout: float) -> Any:
        raise KeyboardInterrupt

    machine: Any = SimpleNamespace(name="w1", start=lambda packed, program: Echo())
    talk = Conversation(Sessions([machine], b"", LimitSettings(), 0), {}, lambda asked: asked)
    first, second, third = (json.dumps({"type": "step", "data": number}) for number in range(3))
    assert talk.answer(first) == first and talk._session is not None
    talk._session._told.get = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        talk.answer(second)
    if talk._session is not None:
        del talk._session._told.get
    assert talk.answer(third) == third
