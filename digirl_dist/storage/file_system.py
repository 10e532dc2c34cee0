"""Explains what a file system lacks or refuses: locks, files, space, different owners of files.

Imports the standard library only: this file runs on workers before the package is installed there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NOBODY = 65534
"""Whom Linux shows in place of owners that a container, or a file server, does not name: root above all."""
_FEWEST_FILES = 10


def lock(file: IO[str] | IO[bytes] | int, shared: bool = False, wait: bool = False) -> bool:
    """Locks an open file; returns False if another process holds it.

    Raises OSError, which says so in its text where the file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        name = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
        raise OSError(error.errno, f"its file system has no locks ({error.strerror})", name) from error
    return True


def found_at(path: str | Path) -> os.stat_result | None:
    """Returns what the file system tells of a path; None if nothing is there, or not any more."""
    try:
        return os.stat(path)
    except OSError:
        return None


def nearest(folder: Path) -> Path:
    """Returns the folder, or the nearest one above it that can be looked at."""
    for place in (folder, *folder.parents):
        with suppress(OSError):
            place.stat()
            return place
    return Path("/")


def free(folder: Path) -> tuple[int, int | None]:
    """Returns how many bytes, and how many files, can be added to the folder's disk; None: files are not counted.

    Raises OSError.
    """
    found = os.statvfs(nearest(folder))
    return shutil.disk_usage(nearest(folder)).free, found.f_favail if found.f_files else None


def in_words(error: OSError, place: Path) -> str:
    """Returns the words of an error; for a full disk, they say whether bytes, files or a quota ran out at ``place``."""
    said = error.strerror or str(error)
    if error.errno == errno.EDQUOT:
        return f"{said}: the user's or the project's share of bytes or of files is used up (`quota -s`, `lfs quota`)"
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            free_bytes, free_files = free(place)
            if free_files is not None and free_files < _FEWEST_FILES:
                return f"{said} for another file: all inodes are used (`df -i`), with {free_bytes >> 20} MiB free"
    return said


def refuses_programs(folder: Path) -> bool:
    """Returns whether the folder's file system is mounted ``noexec``, so that no library can be loaded from it."""
    return bool(os.statvfs(nearest(folder)).f_flag & os.ST_NOEXEC)


def refuse_squatted(folder: Path) -> None:
    """Raises PermissionError if another user made ``folder``, or owns one above it that is open to all, as they could
    exchange what is in it: Python, and the pickled classes that the program loads.

    A file server may show one owner for everything, whoever made it: then it shows that owner for a new file, too.
    """
    paths = folder.absolute(), folder.resolve()
    for place in sorted({place for path in paths for place in (path, *path.parents)}):
        with suppress(FileNotFoundError):
            found = place.lstat()
            if found.st_uid in (0, _NOBODY, os.geteuid()) or not (place in paths or found.st_mode & stat.S_IWOTH):
                continue
            if not stat.S_ISDIR(found.st_mode) or _owner_of_a_new_file(place) != found.st_uid:
                raise PermissionError(errno.EACCES, "it belongs to another user of this machine", str(place))


def _owner_of_a_new_file(folder: Path) -> int | None:
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as made:
        return os.fstat(made.fileno()).st_uid
    return None
