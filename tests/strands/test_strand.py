"""Work on strands: in order on each, none delayed by another, on no more threads than there is work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from process_watch import eventually

from digirl_dist.child_process import environment
from digirl_dist.strands.strand import Strand, Threads, Work

IDLE_S = 0.2


def refuse(error: Exception) -> None:
    raise AssertionError from error


@pytest.fixture
def threads() -> Threads:
    return Threads(IDLE_S)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def strand_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "strand" or thread.name.startswith("of-")]


def test_the_work_of_a_strand_is_done_in_order_and_never_two_pieces_at_once(threads: Threads) -> None:
    done, inside = list[tuple[int, int]](), [0, 0]

    def piece(strand: int, number: int) -> None:
        inside[strand] += 1
        time.sleep(0.0005 * (number % 3))
        done.append((strand, number if inside[strand] == 1 else -1))
        inside[strand] -= 1

    strands = [Strand(f"of-{name}", refuse, threads) for name in ("a", "b")]
    for number in range(200):
        for index, strand in enumerate(strands):
            strand.do(lambda index=index, number=number: piece(index, number))  # type: ignore[misc]
        if number % 50 == 0:
            time.sleep(0.02)  # a strand that ran dry begins again
    eventually(lambda: len(done) == 400)
    assert [[number for one, number in done if one == strand] for strand in (0, 1)] == [list(range(200))] * 2


def test_strands_that_are_stuck_delay_no_other_and_their_threads_bear_their_names(
    threads: Threads, gate: threading.Event
) -> None:
    stuck = [Strand(f"of-{number}", refuse, threads) for number in range(20)]
    for strand in stuck:
        strand.do(gate.wait)
        strand.do(gate.wait)
    done = threading.Event()
    Strand("of-other", refuse, threads).do(done.set)
    assert done.wait(120.0) and not gate.is_set()
    names = {thread.name for thread in strand_threads()}
    assert {f"of-{number}" for number in range(20)} <= names


def test_threads_are_used_again(threads: Threads) -> None:
    used, strand = set[threading.Thread](), Strand("of-one", refuse, threads)
    for _ in range(20):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(120.0)
        eventually(lambda: threads._idle)
        strand.do(lambda: used.add(threading.current_thread()))
        eventually(lambda: threads._idle)
    assert len(used) == 1


def test_threads_that_have_been_idle_end_except_for_one(threads: Threads, gate: threading.Event) -> None:
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


def test_work_goes_on_while_the_machine_refuses_threads(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_work_raises_is_told_and_ends_the_strand_but_no_other(threads: Threads, gate: threading.Event) -> None:
    done, told = list[str](), list[Exception]()
    strand, other = Strand("of-one", told.append, threads), Strand("of-other", refuse, threads)

    def fail() -> None:
        gate.wait()
        raise ValueError("planted")

    strand.do(fail)
    strand.do(lambda: done.append("after it"))
    gate.set()
    eventually(lambda: told)
    strand.do(lambda: done.append("later"))
    other.do(lambda: done.append("other"))
    eventually(lambda: done)
    assert [str(error) for error in told] == ["planted"] and done == ["other"]


def test_a_closed_strand_does_what_came_before_and_nothing_else(threads: Threads, gate: threading.Event) -> None:
    done, strand = list[int](), Strand("of-one", refuse, threads)
    strand.do(gate.wait)
    strand.do(lambda: done.append(1))
    strand.close()
    strand.do(lambda: done.append(2))
    gate.set()
    eventually(lambda: not strand._has_thread)
    assert done == [1]


def test_a_refused_thread_ends_the_strand_that_needs_it(
    threads: Threads, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, told = list[int](), list[Exception]()
    first, second = Strand("of-first", refuse, threads), Strand("of-second", told.append, threads)
    first.do(gate.wait)
    monkeypatch.setattr(threading.Thread, "start", raise_no_thread)
    second.do(lambda: done.append(2))
    assert [str(error) for error in told] == ["can't start new thread"]
    first.do(lambda: done.append(1))
    gate.set()
    eventually(lambda: done)
    second.do(lambda: done.append(2))
    assert done == [1]


@pytest.mark.parametrize("do", [Threads(300.0).run, Strand("of-one", refuse, Threads(300.0)).do])
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
    threads, done = Threads(idle_s=0.0002), list[int]()
    for number in range(2000):
        threads.run(lambda number=number: done.append(number))  # type: ignore[misc]
        time.sleep(0.0001 * (number % 5))
    eventually(lambda: len(done) == 2000)
    eventually(lambda: len(threads._idle) == 1)


STUCK = """
import threading
from digirl_dist.strands.strand import Strand
begun = threading.Event()
strand = Strand("stuck", print)
strand.do(begun.set)
strand.do(threading.Event().wait)
begun.wait()
"""


@pytest.mark.component
def test_a_stuck_strand_does_not_hold_up_the_end_of_the_interpreter() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], env=environment(), timeout=120.0, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
