"""The one opener for reading: of a folder that a stranger made, no pipe, device, far link or hole holds anybody up.

``named`` says that a person named this very file, so that its link may lead anywhere. A file that was found in a folder
may be a link only to a file of the same folder.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_MOST = 8 << 20
"""JSON takes up to 24 times its bytes in memory."""
_GROWN = 1 << 16
"""By how much a file may grow while it is read."""
SMALL, LARGE = 64 << 20, 1 << 37
"""In bytes: zeros that are read at once, and within a minute or so."""
_HOLES = 16
"""A file of holes has less than this part of its size as data: it would be read for hours."""
_BLOCK = 512
"""Bytes of what ``st_blocks`` counts: too few where the file system compresses, or has yet to store what is new."""
_PIECES = 1 << 16
"""Looked for, of data between holes."""
_SHELF = os.path.join(os.pardir, os.pardir, "blobs")
"""Where the cache of the Hugging Face hub keeps the files that a snapshot's links lead to."""


def opened(path: Path, buffering: int = -1, named: bool = False, most: int = SMALL) -> BinaryIO:
    """Opens a regular file. Raises OSError for anything else, for a link out of the file's folder, and for a file of
    holes that has more than ``most`` bytes."""
    if not named and (target := link_out(path)) is not None:
        raise OSError(errno.ELOOP, f"it is a link out of its folder, to {target}: put the file itself there", str(path))
    file = open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    try:
        _refuse_odd(file.fileno(), path, most)
    except OSError:
        file.close()
        raise
    return file


def content(path: Path, most: int = _MOST, named: bool = False) -> bytes:
    """Returns the content of a regular file of at most so many bytes. Raises OSError."""
    with opened(path, named=named) as file:
        size = os.fstat(file.fileno()).st_size
        found = file.read(min(most, size + _GROWN) + 1)  # memory is taken for all that is asked for
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return found


def checked(path: Path, most: int = SMALL) -> Path:
    """Returns the path of a file that ``opened`` would open, for libraries that take no open file. Raises OSError."""
    opened(path, most=most).close()
    return path


def defect(error: Exception) -> str:
    """Returns what an error of reading a file says, without the file's name and the error's number."""
    is_encoded = isinstance(error, UnicodeDecodeError)
    return "it is no UTF-8: save it as such" if is_encoded else getattr(error, "strerror", None) or str(error)


def link_out(path: Path) -> str | None:
    """Returns where a link out of its folder leads; None for any other path."""
    if not os.path.islink(path):
        return None
    folder, target = os.path.realpath(path.parent), os.path.realpath(path)
    inside = os.path.commonpath((folder, target)) == folder
    return None if inside or os.path.dirname(target) == os.path.normpath(os.path.join(folder, _SHELF)) else target


def _refuse_odd(file: int, path: Path, most: int) -> None:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > most and 0 < found.st_blocks * _BLOCK < found.st_size / _HOLES > _data(file):
        raise OSError(errno.EINVAL, f"nearly all of its {found.st_size:,} bytes are holes", str(path))


def _data(file: int) -> int:
    """Returns how many bytes are no holes; all of them where the file system does not tell."""
    data = end = 0
    with suppress(OSError):  # there is no data behind
        for _ in range(_PIECES):
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
            data += end - start
    os.lseek(file, 0, os.SEEK_SET)
    return data
