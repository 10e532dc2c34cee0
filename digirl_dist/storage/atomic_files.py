"""The one way to write: files appear complete or not at all, even across a power cut, and never through a link.

With ``flushed=False`` a power cut may damage the file. That is faster, and enough for a file whose damage is detected
and which can be made again.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from digirl_dist.storage import strict_json
from digirl_dist.types import Json

_SUFFIX = ".part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPENDED = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_TO_ALL = 0o666
"""As far as the umask lets it."""


def replace(part: Path, path: Path, flushed: bool = True) -> None:
    """Renames ``part`` to ``path``; flushes first the content and then the rename to disk."""
    if flushed:
        flush(part)
    os.replace(part, path)
    if flushed:
        flush(path.parent)


@contextmanager
def appearing(path: Path, flushed: bool = True) -> Iterator[Path]:
    """Yields a new, empty file beside ``path`` to write to; renames that at the end, and deletes it after an error.

    Nobody can have put anything in its place beforehand: its name is random.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_SUFFIX}")
    os.close(os.open(part, _NEW, _OPEN_TO_ALL))
    try:
        yield part
        replace(part, path, flushed)
    except BaseException:  # frees space on a full disk, and leaves nothing half-written after Ctrl-C
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Deletes what killed processes left of the files of a folder; only for a process that has the folder to itself."""
    for part in folder.glob(f".*.{'[0-9a-f]' * 16}{_SUFFIX}"):
        part.unlink(missing_ok=True)


def created(path: Path) -> BinaryIO:
    """Opens a new file of a folder that is itself not in its place yet. Raises OSError if there is one, or a link."""
    return open(path, "xb")


def write_bytes(path: Path, content: bytes, flushed: bool = True) -> None:
    """Writes a file whose content is in memory."""
    with appearing(path, flushed) as part:
        part.write_bytes(content)


def write_secret(path: Path, text: str) -> None:
    """Writes a small file that only this user may read."""
    with appearing(path) as part:
        part.chmod(0o600)
        part.write_text(text)


def write_text(path: Path, text: str, flushed: bool = True) -> None:
    """Writes a small text file."""
    write_bytes(path, text.encode(), flushed)


def write_json(path: Path, value: Json) -> None:
    """Writes a small JSON file."""
    write_text(path, strict_json.dumps(value, indent=1) + "\n")


def opened_to_append(path: Path) -> FileIO:
    """Opens a file to be read and appended to, and makes it if it is missing.

    Raises OSError for a link, for anything but a regular file, and for one that has another name elsewhere.
    """
    handle = os.open(path, _APPENDED, _OPEN_TO_ALL)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        reason = "it is no regular file" if not stat.S_ISREG(found.st_mode) else "it is a hard link: put a copy there"
        raise OSError(errno.EINVAL, reason, str(path))
    return FileIO(handle, "r+b")


def flush(path: Path) -> None:
    """Flushes a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
