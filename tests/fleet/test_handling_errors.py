"""What a worker says, or is told, meets a defect of the host: that connection ends, and whoever caused it goes on."""

from __future__ import annotations

import errno
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from digirl_dist.errors import HandlingError, LinkLostError
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import Session
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker import RemoteWorker, session_clock
from digirl_dist.fleet.worker_events import Lost, Said
from digirl_dist.protocol.messages import PROTOCOL, Ask, Heartbeat, Ready, SlotLimits, Working, encode
from digirl_dist.settings import LimitSettings

LIMITS = LimitSettings(back_off_s=0.01, back_off_max_s=0.01, quarantine_s=300.0, worker_offences=3)
SAID = [encode(Ready(PROTOCOL, "package", "3.11", 1)), encode(Working(2, "", []))]


class Honest:
    """The connection to a program that starts to work, and then says nothing until it is closed."""

    files: Any = None

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for said in SAID:
            self._lines.put(said)

    def says(self, line: bytes) -> None:
        self._lines.put(line)

    def connect(self, *_: Any) -> Honest:
        return Honest()

    def write(self, line: bytes) -> None:
        """Nobody answers."""

    def readline(self, timeout_s: float) -> bytes:
        return self._lines.get(timeout=timeout_s)

    def read(self, size: int) -> bytes:
        return b"part"

    def why_ended(self) -> LinkLostError:
        return LinkLostError("w1", "it was closed")

    def close(self) -> None:
        self._lines.put(b"")


def remote_worker(post: Callable[[Any], None], limits: LimitSettings = LIMITS) -> RemoteWorker:
    spec: Any = SimpleNamespace(name="w1", slots=2, package="package")
    connector: Any = Honest()
    job = Job("r1", b"agent", b"e", 10, SlotLimits(), 1, 60.0)
    return RemoteWorker(spec, job, connector, limits, lambda event, *_: post(event))


@pytest.fixture
def told() -> Iterator[tuple[RemoteWorker, queue.Queue[Any]]]:
    events: queue.Queue[Any] = queue.Queue()
    worker = remote_worker(events.put)
    yield worker, events
    worker.stop()
    worker.hang_up()
    worker.join(10.0)


def test_a_defect_in_coming_back_is_told_and_ends_the_wait_for_the_worker(
    monkeypatch: pytest.MonkeyPatch, told: tuple[RemoteWorker, queue.Queue[Any]]
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(Honest, "connect", broken)
    monkeypatch.setattr(Reconnecting, "lost", broken)
    worker, events = told
    worker.start()
    lost = events.get(timeout=120.0)
    assert isinstance(lost, Lost) and lost.is_final
    assert isinstance(lost.error, HandlingError) and "planted" in lost.error.reason


def test_a_defect_in_acting_on_a_message_takes_the_worker_out_of_service(
    monkeypatch: pytest.MonkeyPatch, told: tuple[RemoteWorker, queue.Queue[Any]]
) -> None:
    def broken(self: Session, message: Any, *_: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(Session, "_receive", broken)
    worker, events = told
    worker.start()
    lost = [events.get(timeout=120.0) for _ in range(3)]
    assert all(isinstance(one, Lost) and isinstance(one.error, HandlingError) for one in lost)
    assert all("Traceback" in one.error.reason and "planted" in one.error.reason for one in lost)
    assert [one.out_s for one in lost] == [None, None, 300.0]


@pytest.mark.parametrize(
    "defect", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
def test_what_this_host_lacks_is_told_with_the_limit_to_raise_and_blames_no_worker(
    defect: Exception, monkeypatch: pytest.MonkeyPatch, told: tuple[RemoteWorker, queue.Queue[Any]]
) -> None:
    def lacking(*_: Any) -> Any:
        raise defect

    monkeypatch.setattr(Honest, "connect", lacking)
    worker, events = told
    worker.start()
    for _ in range(4):
        lost = events.get(timeout=120.0)
        assert isinstance(lost.error, LinkLostError) and "ulimit" in lost.error.remedy and lost.out_s is None


def test_a_host_that_slept_takes_no_link_for_half_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clocks are as the kernel's are when it has slept: only one of them has counted that."""
    slept_s, real, link, events = [0.0], time.clock_gettime, Honest(), queue.Queue[Any]()
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + slept_s[0] * (clock == time.CLOCK_BOOTTIME))
    monkeypatch.setattr(Honest, "connect", lambda *_: link)
    worker = remote_worker(events.put, replace(LIMITS, silence_s=0.1))
    worker.start()
    while not isinstance(events.get(timeout=120.0).message, Working):
        pass
    time.sleep(0.2)
    worker.ping(session_clock())
    slept_s[0] = 600.0
    beat = Heartbeat("waiting", 1.0, 590.0, [], [], 0, 2)
    link.says(encode(beat))
    assert events.get(timeout=120.0) == Said("w1", beat)
    worker.stop()
    worker.hang_up()
    worker.join(10.0)


@pytest.mark.parametrize(
    "cut", [encode(Heartbeat("waiting", 1.0, 0.0, [], [], 0, 2))[:40], encode(Ask(1, 0, (0, 0, 0), "", 9, None, 9))]
)
def test_a_program_that_is_killed_in_the_middle_of_a_message_has_ended_and_told_no_lie(
    cut: bytes, monkeypatch: pytest.MonkeyPatch, told: tuple[RemoteWorker, queue.Queue[Any]]
) -> None:
    link = Honest()
    monkeypatch.setattr(Honest, "connect", lambda *_: link)
    link.says(cut)
    worker, events = told
    worker.start()
    while not isinstance(event := events.get(timeout=120.0), Lost):
        pass
    assert type(event.error) is LinkLostError and event.error.reason == "it was closed"


def test_the_last_words_of_a_worker_that_was_let_go_are_not_those_of_the_next_one_of_its_name() -> None:
    events: list[Any] = []
    worker, working = remote_worker(events.append), Said("w1", Working(2, "", []))
    worker.post(working)
    worker.stop()
    worker.post(working)
    assert events == [working]


def test_a_defect_in_telling_a_worker_something_does_not_reach_who_tells_it(
    monkeypatch: pytest.MonkeyPatch, told: tuple[RemoteWorker, queue.Queue[Any]]
) -> None:
    def broken(self: Session, *_: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(Session, "lease", broken)
    worker, events = told
    worker.start()
    while not isinstance(event := events.get(timeout=120.0), Said):
        time.sleep(0.01)
    worker.lease([])
    while not isinstance(event := events.get(timeout=120.0), Lost):
        pass
    assert isinstance(event.error, HandlingError) and "planted" in event.error.reason
