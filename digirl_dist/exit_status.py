"""Exit statuses, the error line on stderr, and a quick exit of commands and programs."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from digirl_dist.errors import DigirlDistError, SettingsError
from digirl_dist.plain_text import printable

RESUMES = "the same command resumes where it stopped"
"""What is said of a run that did not come to its end."""
WORDS = "DIGIRL_DIST_WORDS"
"""The variable with further words of the command line, as JSON, for the ranks of a host."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Parser(argparse.ArgumentParser):
    """Reports a wrong word of the command line as any other error, in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {printable(message)}; `{self.prog} --help` shows what there is\n")


def exit_status(command: Callable[[], int], after_interruption: str = "") -> int:
    """Returns ``command``'s status; 2 after a SettingsError, 1 after another DigirlDistError or a file that cannot be
    used, 130 if interrupted, 141 if its output is no longer read."""
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except DigirlDistError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            print(f"interrupted{after_interruption and f'; {after_interruption}'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output, such as `head`, has seen enough
        _write_nowhere()
        return 141
    except OSError as error:
        if error.filename is None and error.errno not in _FULL:
            raise
        if error.filename is None:
            _write_nowhere()
        print(f"error: {printable(str(error.filename or 'the output'))}: {error.strerror}", file=sys.stderr)
        return 1


def end_without_a_search_for_garbage() -> None:
    """Has this process exit without Python's last look at every object, which takes one with torch half a second."""
    atexit.register(gc.freeze)


def _write_nowhere() -> None:
    """What is still in the buffer would fail once more at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_by_signals_as_by_ctrl_c() -> None:
    """Makes SIGTERM raise KeyboardInterrupt, so that the command stops its children in order.

    So does SIGHUP, when a terminal is closed, unless the process was told to ignore it, as ``nohup`` does.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


@contextmanager
def interruptions_wait() -> Iterator[None]:
    """Has Ctrl-C, and signals that end the process as it does, wait for the end of the block; the second does not.

    For imports of torch: what interrupts one is swallowed by its C++, or aborts the process. Changes nothing in another
    thread than the main one, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with handled([each for each in signals if callable(signal.getsignal(each))], note):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def handled(signals: Sequence[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Has ``handler`` called for these signals until the end of the block; only the main thread may do so."""
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, former in before.items():
            signal.signal(each, former)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
