"""Full disks: a write waits for free space instead of ending the run."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from digirl_dist.errors import RunFolderError
from digirl_dist.storage.events import Events
from digirl_dist.storage.file_system import FULL, free, in_words
from digirl_dist.storage.status import Status
from digirl_dist.types import T

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_SPARE = 1 << 16
_IN_WORDS = re.compile(r"\(os error (\d+)\)")


class WritePolicy(Protocol):
    """Decides what a write does while the disk is full."""

    def wait_for(self, what: str, write: Callable[[], T]) -> T:
        """Returns the result of ``write``. Raises RunFolderError naming ``what`` if the system refuses to write it."""


class FailFast:
    """Lets a write on a full disk fail at once."""

    def wait_for(self, what: str, write: Callable[[], T]) -> T:
        try:
            return write()
        except OSError as error:
            raise _refused(what, error) from error


class WaitForSpace:
    """Makes writes wait while the disk is full, at most ``limit_s`` seconds, and reports the wait.

    ``check`` is called before each write, and raises if nothing may be written any more.
    """

    def __init__(
        self, events: Events, status: Status, limit_s: float, check: Callable[[], None] = lambda: None
    ) -> None:
        self._events = events
        self._status = status
        self._limit_s = limit_s
        self._check = check

    def wait_for(self, what: str, write: Callable[[], T]) -> T:
        """Returns the result of ``write``, which must be idempotent; waits for space at most ``limit_s``."""
        self._check()
        deadline = time.monotonic() + self._limit_s
        pause_s, doing = _FIRST_PAUSE_S, self._status.doing
        while True:
            try:
                written = write()
                if pause_s != _FIRST_PAUSE_S:
                    self._status.host(doing)
                return written
            except OSError as error:
                if error.errno not in FULL:
                    raise _refused(what, error) from error
                reason = str(_refused(what, error))
                if time.monotonic() > deadline:
                    raise RunFolderError(f"{reason}, for {self._limit_s:.0f} s; free some space") from error
            self._events.emit("disk_full", reason=reason, remedy="free some space on the host")
            self._status.host(f"wait for space on the host's disk: {reason}")
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)


def _refused(what: str, error: OSError) -> RunFolderError:
    """Returns what is said of a write that failed, whose own error often lacks the file."""
    return RunFolderError(f"{what} cannot be written: {in_words(error, Path(error.filename or what))}")


def require_space(size: int, folder: Path) -> None:
    """Raises OSError (ENOSPC) if ``size`` more bytes would fill the folder's disk but for 64 KiB."""
    free_bytes, free_files = free(folder)
    if free_bytes < size + _SPARE or free_files == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def library_errors_as_oserror(path: Path) -> Iterator[None]:
    """Raises the OSError that a writing library had from the system in place of its own error.

    PyTorch raises a RuntimeError of another kind while it handles the system's; safetensors puts the number in words.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if (number := _errno_behind(error)) is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _errno_behind(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        if found := _IN_WORDS.search(str(error)):
            return int(found[1])
        error = error.__context__
    return None
