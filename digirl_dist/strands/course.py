"""A course of things that holds a thread only while it acts: a generator, which yields what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from digirl_dist.strands.lookout import LOOKOUT, TICK_S, Call, Once
from digirl_dist.strands.strand import ALL, Threads, named

Result = TypeVar("Result")
Wait = Callable[[Call], None]
"""Called with what is to be called when the wait is over, by any thread, once or more."""

Waits = Generator[Wait, None, Result]


class Patience:
    """How long something is waited for. Time in which this process is held up itself counts for nothing."""

    def __init__(self, seconds: float) -> None:
        self._until = LOOKOUT.now + TICK_S + seconds  # its clock may be behind by a tick

    @property
    def is_over(self) -> bool:
        return LOOKOUT.now >= self._until

    def wait(self, ready: Wait, resume: Call) -> None:
        """Resumes when ``ready`` says so, or when patience is over."""
        once = Once(resume)
        try:
            ready(once)
            LOOKOUT.at(self._until, once)
        except BaseException:
            once.forgo()
            raise


def pause(seconds: float) -> Wait:
    """Returns a wait for nothing else than the time."""
    return partial(Patience(seconds).wait, lambda resume: None)


class Course:
    """Takes the steps of a generator, one after the other, on shared threads."""

    def __init__(self, name: str, steps: Waits[None], threads: Threads = ALL) -> None:
        """``name`` is that of the thread that takes a step, meanwhile."""
        self.ended = threading.Event()
        self._name = name
        self._steps = steps
        self._threads = threads

    def start(self) -> None:
        """Raises RuntimeError if a thread is refused."""
        LOOKOUT.start()
        self._threads.run(self._go_on)

    def _go_on(self) -> None:
        wait = self._step(partial(next, self._steps))
        while wait is not None:
            try:
                wait(self._resume)
                return
            except Exception as error:  # it cannot be waited for, say for want of descriptors
                wait = self._step(partial(self._steps.throw, error))

    def _step(self, go_on: Callable[[], Wait]) -> Wait | None:
        """Returns what is to be waited for next; None at the end."""
        try:
            with named(self._name):
                return go_on()
        except StopIteration:
            self.ended.set()
            return None
        except BaseException:
            self.ended.set()
            raise

    def _resume(self) -> None:
        """Tries again while the machine refuses threads: only the course itself could tell anybody."""
        try:
            self._threads.run(self._go_on)
        except RuntimeError:  # can't start new thread
            LOOKOUT.at(LOOKOUT.now + TICK_S, Once(self._resume))
