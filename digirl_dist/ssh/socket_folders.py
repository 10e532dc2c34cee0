"""Folders for the sockets of ``ssh``: short names, this user's alone, and swept once their process has been killed."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

_NAME = "digirl-ssh-"
_LONGEST = 45
"""``ssh`` adds to the name of its socket, and a Unix socket's path has at most 107 bytes."""


class SocketFolders:
    """Makes folders in one of this process's own, which is locked while the process lives."""

    def __init__(self) -> None:
        self._home: Path | None = None
        self._making = threading.Lock()

    def make(self) -> Path:
        """Returns a new folder. The first time, deletes those of this user's processes that are no more."""
        with self._making:
            if self._home is None or not self._home.exists():
                self._home = _locked_home()
        return Path(tempfile.mkdtemp(dir=self._home))


def _locked_home() -> Path:
    temporary = tempfile.gettempdir()
    is_plain = len(os.fsencode(temporary)) < _LONGEST and not set("%$") & set(temporary)  # which `ssh` would expand
    place = Path(temporary if is_plain else "/tmp")
    for other in place.glob(f"{_NAME}*"):
        _sweep(other)
    made = Path(tempfile.mkdtemp(prefix="digirl-new-", dir=place))  # nobody sweeps it before it is locked
    fcntl.flock(os.open(made / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    home = made.rename(place / made.name.replace("digirl-new-", _NAME))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def _sweep(home: Path) -> None:
    """Deletes the folder of a process that has ended; a lock tells that across containers, too."""
    try:
        if home.is_symlink() or home.stat().st_uid != os.geteuid():
            return
        lock = os.open(home / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(home, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
