"""The one opener for reading: of a folder that a stranger made, no pipe, device, far link or hole holds anybody up.

``named`` says that a person named this very file, so that its link may lead anywhere. A file that was found in a folder
may be a link only to a file of the same folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MOST = 8 << 20
"""JSON takes up to 24 times its bytes in memory."""
_GROWN = 1 << 16
"""By how much a file may grow while it is read."""
_SMALL = 64 << 20
_HOLES = 16
"""A larger file that takes less than this part of its size on disk is refused: it would be read for hours."""
_BLOCK = 512
"""Bytes of what ``st_blocks`` counts."""
_SHELF = os.path.join(os.pardir, os.pardir, "blobs")
"""Where the cache of the Hugging Face hub keeps the files that a snapshot's links lead to."""


def opened(path: Path, buffering: int = -1, named: bool = False) -> BinaryIO:
    """Opens a regular file. Raises OSError for anything else, and for a link out of the file's folder."""
    if not named and (target := link_out(path)) is not None:
        raise OSError(errno.ELOOP, f"it is a link out of its folder, to {target}: put the file itself there", str(path))
    file = open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    try:
        _refuse_odd(os.fstat(file.fileno()), path)
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


def checked(path: Path) -> Path:
    """Returns the path of a file that ``opened`` would open, for libraries that take no open file. Raises OSError."""
    opened(path).close()
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


def _refuse_odd(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > _SMALL and 0 < found.st_blocks * _BLOCK < found.st_size / _HOLES:
        raise OSError(errno.EINVAL, f"nearly all of its {found.st_size:,} bytes are holes", str(path))
