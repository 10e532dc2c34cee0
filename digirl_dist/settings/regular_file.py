"""Reads files of folders that somebody else may have made: a named pipe holds up nobody, and a device has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MOST = 1 << 26


def opened(path: Path, buffering: int = -1) -> BinaryIO:
    """Opens a regular file. Raises OSError for what is none."""
    file = open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def content(path: Path, most: int = _MOST) -> bytes:
    """Returns the content of a regular file of at most so many bytes. Raises OSError."""
    with opened(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return found


def defect(error: Exception) -> str:
    """Returns what an error of reading a file says, without the file's name and the error's number."""
    return getattr(error, "strerror", None) or str(error)
