"""How every figure is measured: at full size or in miniature, before a deadline, telling stderr what it waits for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

import psutil

from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c

MINIATURE = os.environ.get("BENCH_MINIATURE") == "1"
"""``script/bench NAME --miniature``: does it still run? Its values mean nothing."""
_MINIATURE_S = 240.0
_REMIND_S = 10.0
_CLEAN_UP_S = 30.0
_started = time.monotonic()
_waits: list[Callable[[], str]] = []
T = TypeVar("T")


class DeadlinePassed(BaseException):
    """The benchmark took longer than it may; no ``except Exception`` on the way up keeps it running."""


def sized(full: T, miniature: T) -> T:
    """Returns one of the two, so that the sizes of both stand side by side."""
    return miniature if MINIATURE else full


@contextmanager
def waiting_for(what: str, progress: Callable[[], str] = str) -> Iterator[None]:
    """Names what the block waits for, with its present ``progress`` wherever it is told."""
    _waits.append(lambda: f"{what} {progress()}".rstrip())
    _tell(f"waits for {_present()}")
    try:
        yield
    finally:
        _waits.pop()


def measure(main: Callable[[], None], minutes: float) -> None:
    """Runs ``main``. Past its deadline the benchmark says what it was waiting for, and ends with status 1.

    ``BENCH_DEADLINE_S`` replaces the deadline. What ``main`` has opened is closed first, unless that takes long.
    """
    end_by_signals_as_by_ctrl_c()  # which takes down servers and network namespaces
    limit_s = float(os.environ.get("BENCH_DEADLINE_S") or (_MINIATURE_S if MINIATURE else minutes * 60))
    threading.Thread(target=_remind, daemon=True).start()
    last_resort = threading.Timer(limit_s + _CLEAN_UP_S, _end)
    last_resort.daemon = True
    last_resort.start()

    def give_up(number: int, frame: FrameType | None) -> None:
        _tell(f"has taken longer than its {limit_s:g} s; it was waiting for {_present()}")
        raise DeadlinePassed

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        main()
    except DeadlinePassed:
        sys.exit(1)


def _remind() -> None:
    while True:
        time.sleep(_REMIND_S)
        _tell(f"still waits for {_present()}")


def _end() -> None:
    """Ends this process and those below it, however stuck they are."""
    _tell(f"could not clean up within {_CLEAN_UP_S:g} s")
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    os._exit(1)


def _present() -> str:
    """The innermost of what is waited for. Called from other threads as well."""
    try:
        return _waits[-1]()
    except IndexError:
        return "its own end"


def _tell(what: str) -> None:
    name = Path(sys.argv[0]).stem
    line = f"{time.monotonic() - _started:6.1f} s  {name} {what}\n"
    os.write(sys.stderr.fileno(), line.encode())  # from a signal's handler a print may come in between another
