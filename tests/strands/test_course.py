"""Courses: they hold a thread only while they act, wait for what can be read or for the time, and lose no error."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from process_watch import eventually

from digirl_dist.strands.course import Course, Patience, Wait, Waits, pause
from digirl_dist.strands.lookout import HELD_S, LOOKOUT, TICK_S, Call, Lookout, Once
from digirl_dist.strands.strand import Threads

pytestmark = pytest.mark.component

LONG_S = 300.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    LOOKOUT.forget(ends[0])
    for end in ends:
        os.close(end)


def readable(end: int, seconds: float = LONG_S) -> Wait:
    return partial(Patience(seconds).wait, partial(LOOKOUT.when_readable, end))


def at_work(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_a_course_that_waits_holds_no_thread_and_goes_on_with_what_comes(pipe: tuple[int, int]) -> None:
    heard, acts = list[bytes](), threading.Event()

    def steps() -> Waits[None]:
        acts.wait()
        for _ in range(3):
            yield readable(pipe[0])
            heard.append(os.read(pipe[0], 100))

    threads = Threads(idle_s=0.1)
    course = Course("hears", steps(), threads)
    course.start()
    eventually(lambda: at_work("hears"))
    acts.set()
    for number in range(3):
        eventually(lambda: pipe[0] in LOOKOUT._readers)
        eventually(lambda: len(threads._idle) == 1 and not at_work("hears"))
        assert len(heard) == number and not course.ended.is_set()
        os.write(pipe[1], b"%d" % number)
        eventually(lambda count=number + 1: len(heard) == count)  # type: ignore[misc]
    assert course.ended.wait(LONG_S) and heard == [b"0", b"1", b"2"]


def test_patience_ends_a_wait_for_what_never_comes_and_never_too_early(pipe: tuple[int, int]) -> None:
    waited = list[float]()

    def steps() -> Waits[None]:
        for seconds in (0.0, 0.7):
            began, patience = time.monotonic(), Patience(seconds)
            while not patience.is_over:
                yield partial(patience.wait, partial(LOOKOUT.when_readable, pipe[0]))
            waited.append(time.monotonic() - began - seconds)
        began = time.monotonic()
        yield pause(0.6)
        waited.append(time.monotonic() - began - 0.6)

    course = Course("waits", steps())
    course.start()
    assert course.ended.wait(LONG_S) and len(waited) == 3 and min(waited) >= 0.0


def test_each_step_is_taken_once_however_many_end_the_wait() -> None:
    taken, all_at_once = list[int](), threading.Barrier(8)

    def everybody(resume: Call) -> None:
        def one() -> None:
            all_at_once.wait()
            resume()

        for _ in range(8):
            threading.Thread(target=one).start()

    def steps() -> Waits[None]:
        for number in range(100):
            yield partial(Patience(LONG_S).wait, everybody)
            taken.append(number)

    course = Course("takes", steps())
    course.start()
    assert course.ended.wait(LONG_S) and taken == list(range(100))


def test_what_cannot_be_waited_for_is_raised_where_the_course_waits(pipe: tuple[int, int]) -> None:
    told = list[str]()
    resumed: list[Call] = []

    def hopeless(resume: Call) -> None:
        resumed.append(resume)
        raise OSError("no descriptors left")

    def steps() -> Waits[None]:
        try:
            yield partial(Patience(0.0).wait, hopeless)
        except OSError as error:
            told.append(str(error))
        resumed[0]()  # a wait that was never begun cannot end the next one
        yield readable(pipe[0])
        told.append("something came")

    course = Course("fails", steps())
    course.start()
    eventually(lambda: pipe[0] in LOOKOUT._readers)
    time.sleep(3 * TICK_S)
    assert told == ["no descriptors left"]
    os.write(pipe[1], b"x")
    assert course.ended.wait(LONG_S) and told[1:] == ["something came"]


def test_a_course_goes_on_when_the_machine_has_threads_again(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    refused = list[threading.Thread]()

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    def steps() -> Waits[None]:
        yield readable(pipe[0])

    threads, busy = Threads(LONG_S), threading.Event()
    course = Course("resumes", steps(), threads)
    course.start()
    eventually(lambda: pipe[0] in LOOKOUT._readers and len(threads._idle) == 1)
    threads.run(busy.wait)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        os.write(pipe[1], b"x")
        eventually(lambda: len(refused) >= 2)
        assert not course.ended.is_set()
    assert course.ended.wait(LONG_S)
    busy.set()


def lookout_that_did(*calls: Callable[[], object]) -> tuple[Lookout, float]:
    """A lookout that has made the calls, and by how much its clock moved on meanwhile."""
    lookout, done = Lookout(), threading.Event()
    lookout.at(0.0, Once(lambda: None))
    eventually(lambda: lookout.now > 0)
    before = lookout.now
    for call in calls:
        lookout.at(0.0, Once(call))  # type: ignore[arg-type]
    lookout.at(0.0, Once(done.set))
    assert done.wait(LONG_S)
    eventually(lambda: lookout.now >= before + 2 * TICK_S)
    return lookout, lookout.now - before


def test_the_clock_of_all_waits_leaves_out_what_this_process_was_held_up_itself() -> None:
    began = time.monotonic()
    held_s = HELD_S + 2 * TICK_S
    _, passed_s = lookout_that_did(lambda: time.sleep(held_s))
    assert passed_s <= time.monotonic() - began - held_s + TICK_S


def test_a_defect_in_one_call_is_printed_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda told: printed.append(str(told.exc_value)))

    def defect() -> None:
        raise ValueError("planted")

    lookout_that_did(defect)
    assert printed == ["planted"]
