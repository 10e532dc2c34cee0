"""The host's policy answers in batches, finds who is to blame, and is started again when it is lost."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from user_classes import Coin, Counter

from digirl_dist.api.rollouts import FunctionAgent
from digirl_dist.errors import PolicyLostError, SettingsError
from digirl_dist.inference.policy_process import RequestHandler
from digirl_dist.inference.policy_server import Batching, InThisProcess, PolicyProcess, PolicyServer
from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceReply,
    InferenceRequest,
    InferenceResult,
    RandomStream,
)
from digirl_dist.report.why import explain
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.threads import SharedThreads
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.user_code.packing import pack

pytestmark = pytest.mark.system


class Moody(Coin):
    """Says how many it was asked at once, unless one of the words upsets it."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        words = [seen.text for seen in observations]
        if "poison" in words:
            raise RuntimeError("I cannot read this")
        if "bomb" in words:
            import os

            os._exit(3)
        if "assert" in words:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return [Decision(len(words), float(self.logits.sum())) for _ in words]


def ask(number: int, text: str = "", version: int = 1) -> InferenceRequest:
    return InferenceRequest(number, version, RandomStream(0, number, 0), Observation(text))


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, Checkpoint]:
    found = {}
    for version in (1, 2):
        policy = Moody(Counter.spec)
        policy.logits.data += version
        found[version] = Checkpoints(tmp_path / "checkpoints", keep_every=1).save(version, policy.state_dict(), {}, {})
    return found


def test_one_unreadable_observation_leaves_the_others_their_answers(saved: dict[int, Checkpoint]) -> None:
    handler = RequestHandler(pack(partial(Moody, Counter.spec)))
    assert handler.serve(saved) == {}
    answers = {answer.number: answer for answer in handler.decide([ask(0), ask(1, "poison"), ask(2, version=2)])}
    assert answers[0] == InferenceResult(0, Decision(1, 2.0)) and answers[2] == InferenceResult(2, Decision(1, 4.0))
    poisoned = answers[1]
    assert isinstance(poisoned, InferenceFailure) and "I cannot read this" in poisoned.reason


class Keyless(Coin):
    """Looks for its key when it acts."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        raise SettingsError("the agent needs a key: export MY_KEY with it")


def keyless() -> Coin:
    raise SettingsError("the agent needs a key: export MY_KEY with it")


def test_what_an_agent_says_that_was_foreseen_comes_without_a_traceback(saved: dict[int, Checkpoint]) -> None:
    for agent in (partial(Keyless, Counter.spec), keyless):
        handler = RequestHandler(pack(agent))
        handler.serve({1: saved[1]})
        (failed,) = handler.decide([ask(0)])
        assert isinstance(failed, InferenceFailure) and failed.reason.endswith("export MY_KEY with it")
        assert "Traceback" not in failed.reason


def test_a_version_that_is_gone_is_named(saved: dict[int, Checkpoint]) -> None:
    handler = RequestHandler(pack(partial(Moody, Counter.spec)))
    (saved[1].folder / "policy.safetensors").unlink()
    assert list(handler.serve(saved)) == [1]
    lost, retired, answered = handler.decide([ask(0), ask(1, version=0), ask(2, version=2)])
    assert isinstance(lost, InferenceFailure) and "version 1" in lost.reason and "policy.safetensors" in lost.reason
    assert isinstance(retired, InferenceFailure) and "version 0" in retired.reason
    assert isinstance(answered, InferenceResult)


@contextmanager
def server(folder: Path, size: int, wait_s: float) -> Iterator[tuple[PolicyServer, list[str], Status]]:
    told: list[str] = []
    events = Events(folder / "events.jsonl", (lambda kind, content: told.append(kind),))
    status = Status(folder / "status.json")
    agent = partial(Moody, Counter.spec)
    running = PolicyServer(
        PolicyProcess(pack(agent), folder / "policy.log", 60.0), Batching(size, wait_s), 60.0, events, status
    )
    try:
        yield running, told, status
    finally:
        running.close()
        events.close()


def test_batches_are_bounded_in_size_and_time_and_survive_the_process(
    saved: dict[int, Checkpoint], tmp_path: Path
) -> None:
    answers: queue.SimpleQueue[InferenceReply] = queue.SimpleQueue()
    with server(tmp_path, size=3, wait_s=0.5) as (running, told, status):
        for number in range(7):
            running.ask(ask(number), answers.put)
        running.serve(saved[1], set())
        decided: list[Any] = [answers.get(timeout=120) for _ in range(7)]
        assert {one.number: one.decision.action for one in decided} == {0: 3, 1: 3, 2: 3, 3: 3, 4: 3, 5: 3, 6: 1}
        running.ask(ask(7, "bomb"), answers.put)
        blown = answers.get(timeout=120)
        assert isinstance(blown, InferenceFailure) and "ended while it had to decide 1 actions" in blown.reason
        assert told == ["policy_lost", "policy_lost"]
        running.ask(ask(8, "assert"), answers.put)
        failed = answers.get(timeout=120)
        assert isinstance(failed, InferenceFailure) and "device-side assert triggered" in failed.reason
        assert told == ["policy_lost"] * 4  # a device that failed serves a process no more
        running.ask(ask(9), answers.put)
        assert answers.get(timeout=120) == InferenceResult(9, Decision(1, 2.0))
        status.write()
        said = explain(tmp_path)
        assert "the host's policy: wait for requests" in said
        assert "last trouble" in said and "ended while it had to" in said


def test_a_stopped_process_is_killed_at_its_limit_though_not_even_the_request_fits(
    saved: dict[int, Checkpoint], tmp_path: Path
) -> None:
    process = PolicyProcess(pack(partial(Moody, Counter.spec)), tmp_path / "policy.log", limit_s=60.0)
    try:
        assert process.serve(saved) == {}
        assert process._process is not None
        process._process.send_signal(signal.SIGSTOP)
        process._limit_s = 2.0
        with pytest.raises(PolicyLostError, match="did not decide 1 actions within 2 s"):
            process.decide([ask(0, "x" * (8 << 20))])
        process._limit_s = 60.0
        process.serve(saved)
        assert len(process.decide([ask(1)])) == 1, "it was not started again"
    finally:
        process.close()


def test_a_process_that_does_not_take_its_agent_is_killed_at_its_limit(
    saved: dict[int, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    process = PolicyProcess(bytes(4 << 20), tmp_path / "policy.log", limit_s=1.0)
    with pytest.raises(PolicyLostError, match="ended while it had to load a policy"):
        process.serve(saved)


def test_a_callers_function_that_hangs_fails_what_it_was_asked_and_is_never_called_twice_at_a_time(
    tmp_path: Path,
) -> None:
    returns, calls = threading.Event(), []

    def act(observations: Sequence[Observation]) -> list[int]:
        calls.append(len(observations))
        assert returns.wait(60)
        return [0 for _ in observations]

    process = InThisProcess(FunctionAgent(act), limit_s=0.3)
    process.serve({1: Checkpoints(tmp_path).save(1, {}, {}, {})})
    for _ in range(2):
        with pytest.raises(PolicyLostError, match=r"the function that acts did not decide 1 actions within 0\.3 s"):
            process.decide([ask(0)])
    assert calls == [1]
    returns.set()
    process._limit_s = 60.0
    assert [answer.number for answer in process.decide([ask(7), ask(8)])] == [7, 8] and calls == [1, 2]
    process.close()


def test_a_function_acts_again_after_the_machine_had_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    process = InThisProcess(FunctionAgent(lambda seen: [0 for _ in seen]), limit_s=30.0)
    with monkeypatch.context() as patched, pytest.raises(PolicyLostError):
        patched.setattr(SharedThreads, "run", refused)
        process._limit_s = 0.1
        process.decide([])
    process._limit_s = 30.0
    assert process.decide([]) == []
    process.close()
