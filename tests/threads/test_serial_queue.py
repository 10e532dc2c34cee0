"""Work in queues: in order on each, none delayed by another, on no more threads than there is work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from process_watch import eventually

from digirl_dist.child_process import environment
from digirl_dist.threads import SerialQueue, SharedThreads, Work

IDLE_S = 0.2


def refuse(error: Exception) -> None:
    raise AssertionError from error


@pytest.fixture
def threads() -> SharedThreads:
    return SharedThreads(IDLE_S)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def queue_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shared" or thread.name.startswith("of-")]


def test_the_work_of_a_queue_is_done_in_order_and_never_two_pieces_at_once(threads: SharedThreads) -> None:
    done, inside = list[tuple[int, int]](), [0, 0]

    def piece(queue: int, number: int) -> None:
        inside[queue] += 1
        time.sleep(0.0005 * (number % 3))
        done.append((queue, number if inside[queue] == 1 else -1))
        inside[queue] -= 1

    queues = [SerialQueue(f"of-{name}", refuse, threads) for name in ("a", "b")]
    for number in range(200):
        for index, queue in enumerate(queues):
            queue.do(lambda index=index, number=number: piece(index, number))  # type: ignore[misc]
        if number % 50 == 0:
            time.sleep(0.02)  # a queue that ran dry begins again
    eventually(lambda: len(done) == 400)
    assert [[number for one, number in done if one == queue] for queue in (0, 1)] == [list(range(200))] * 2


def test_queues_that_are_stuck_delay_no_other_and_their_threads_bear_their_names(
    threads: SharedThreads, gate: threading.Event
) -> None:
    stuck = [SerialQueue(f"of-{number}", refuse, threads) for number in range(20)]
    for queue in stuck:
        queue.do(gate.wait)
        queue.do(gate.wait)
    done = threading.Event()
    SerialQueue("of-other", refuse, threads).do(done.set)
    assert done.wait(120.0) and not gate.is_set()
    names = {thread.name for thread in queue_threads()}
    assert {f"of-{number}" for number in range(20)} <= names


def test_threads_are_used_again(threads: SharedThreads) -> None:
    used, queue = set[threading.Thread](), SerialQueue("of-one", refuse, threads)
    for _ in range(20):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(120.0)
        eventually(lambda: threads._idle)
        queue.do(lambda: used.add(threading.current_thread()))
        eventually(lambda: threads._idle)
    assert len(used) == 1


def test_threads_that_have_been_idle_end_except_for_one(threads: SharedThreads, gate: threading.Event) -> None:
    used = list[threading.Thread]()

    def wait() -> None:
        used.append(threading.current_thread())
        gate.wait()

    for _ in range(5):
        threads.run(wait)
    eventually(lambda: len(set(used)) == 5)
    gate.set()
    eventually(lambda: sum(thread.is_alive() for thread in used) == 1, what="the end of idle threads")
    assert len(threads._idle) == 1


def test_work_goes_on_while_the_machine_refuses_threads(
    threads: SharedThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.run(int)
    eventually(lambda: threads._idle)
    monkeypatch.setattr(threading.Thread, "start", raise_no_thread)
    time.sleep(0.5)  # longer than a thread stays idle
    for _ in range(3):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(120.0)
        eventually(lambda: threads._idle)


def raise_no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_work_raises_is_told_and_ends_the_queue_but_no_other(
    threads: SharedThreads, gate: threading.Event
) -> None:
    done, told = list[str](), list[Exception]()
    queue, other = SerialQueue("of-one", told.append, threads), SerialQueue("of-other", refuse, threads)

    def fail() -> None:
        gate.wait()
        raise ValueError("planted")

    queue.do(fail)
    queue.do(lambda: done.append("after it"))
    gate.set()
    eventually(lambda: told)
    queue.do(lambda: done.append("later"))
    other.do(lambda: done.append("other"))
    eventually(lambda: done)
    assert [str(error) for error in told] == ["planted"] and done == ["other"]


def test_a_closed_queue_does_what_came_before_and_nothing_else(threads: SharedThreads, gate: threading.Event) -> None:
    done, queue = list[int](), SerialQueue("of-one", refuse, threads)
    queue.do(gate.wait)
    queue.do(lambda: done.append(1))
    queue.close()
    queue.do(lambda: done.append(2))
    gate.set()
    eventually(lambda: not queue._has_thread)
    assert done == [1]


def test_a_refused_thread_ends_the_queue_that_needs_it(
    threads: SharedThreads, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, told = list[int](), list[Exception]()
    first, second = SerialQueue("of-first", refuse, threads), SerialQueue("of-second", told.append, threads)
    first.do(gate.wait)
    monkeypatch.setattr(threading.Thread, "start", raise_no_thread)
    second.do(lambda: done.append(2))
    assert [str(error) for error in told] == ["can't start new thread"]
    first.do(lambda: done.append(1))
    gate.set()
    eventually(lambda: done)
    second.do(lambda: done.append(2))
    assert done == [1]


@pytest.mark.parametrize("do", [SharedThreads(300.0).run, SerialQueue("of-one", refuse, SharedThreads(300.0)).do])
def test_a_thread_that_idles_keeps_nothing_of_its_last_work(do: Callable[[Work], None]) -> None:
    class Kept:
        def __init__(self) -> None:
            self.gone = gone

        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            self.gone.set()

    gone = threading.Event()
    work: list[Work] = [Kept()]
    do(work.pop())
    assert gone.wait(120.0)


def test_work_that_comes_just_as_a_thread_ends_is_done() -> None:
    threads, done = SharedThreads(idle_s=0.0002), list[int]()
    for number in range(2000):
        threads.run(lambda number=number: done.append(number))  # type: ignore[misc]
        time.sleep(0.0001 * (number % 5))
    eventually(lambda: len(done) == 2000)
    eventually(lambda: len(threads._idle) == 1)


STUCK = """
import threading
from digirl_dist.threads import SerialQueue
begun = threading.Event()
queue = SerialQueue("stuck", print)
queue.do(begun.set)
queue.do(threading.Event().wait)
begun.wait()
"""


@pytest.mark.component
def test_a_stuck_queue_does_not_hold_up_the_end_of_the_interpreter() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], env=environment(), timeout=120.0, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
