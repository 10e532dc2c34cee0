"""The side of a relay that has the tensors: ``python -m digirl_dist.worker_program.relay_source --folder DIR``.

The host runs it. It lets a key of the host's into the user's authorized_keys for as long as its stdin is open, for one
command: a courier that gives away files of ``DIR/blobs`` to whoever knows their digests. The line there ends by itself
when nobody renews it, as after the machine has lost its power.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import select
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from digirl_dist.child_process import SOURCE, write_all
from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import shortened
from digirl_dist.protocol.relay import Offer, Offered, decode, encode
from digirl_dist.storage import file_system

_MARK = b"digirl-dist-relay"
_EXPIRY = re.compile(rb'expiry-time="(\d{14})"')
_MOST_BYTES = 1 << 22
_TRIES = 5

Lines = list[bytes]


def default_file() -> Path:
    return Path("~/.ssh/authorized_keys").expanduser()


def allow(file: Path, owner: str, key: str, command: str, lifetime_s: float) -> None:
    """Lets ``key`` run ``command``, and nothing else, for so long. Replaces the owner's line; sweeps expired ones.

    ``owner`` is a word. Raises OSError if the file cannot be changed, ValueError for a command of several lines.
    """
    if not command.isprintable():
        raise ValueError(f"{command!r} cannot stand in authorized_keys")
    escaped = command.replace("\\", "\\\\").replace('"', '\\"')
    options = f'restrict,expiry-time="{_local(time.time() + lifetime_s)}",command="{escaped}"'
    line = f"{options} {key} {_MARK.decode()} {owner}\n".encode()
    _edit(file, lambda lines: [*_without(lines, owner), line])


def withdraw(file: Path, owner: str) -> None:
    """Removes the owner's line, and expired ones of others. Raises OSError."""
    if file.exists():
        _edit(file, lambda lines: _without(lines, owner))


def _without(lines: Lines, owner: str) -> Lines:
    now = _local(time.time()).encode()
    kept = []
    for line in lines:
        is_ours = line.split()[-2:-1] == [_MARK]
        expiry = _EXPIRY.search(line)
        if not (is_ours and (line.split()[-1] == owner.encode() or (expiry is not None and expiry[1] < now))):
            kept.append(line)
    return kept


def _local(at: float) -> str:
    """Returns the time as ``sshd`` reads it: in the machine's zone, whatever this session's is."""
    session = os.environ.pop("TZ", None)
    try:
        time.tzset()
        return time.strftime("%Y%m%d%H%M%S", time.localtime(at))
    finally:
        if session is not None:
            os.environ["TZ"] = session
        time.tzset()


def _edit(file: Path, change: Callable[[Lines], Lines]) -> None:
    """Replaces the file at once by a changed copy; begins anew if another program has changed it meanwhile."""
    file = Path(os.path.realpath(file))
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked():
        for _ in range(_TRIES):
            before = _version(file)
            content = file.read_bytes() if before else b""
            if before and not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, "it is not writable", str(file))
            if len(content) > _MOST_BYTES:
                raise OSError(errno.EFBIG, "it is too large", str(file))
            lines = content.splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += b"\n"
            changed = change(lines)
            if changed == lines or _replaced(file, b"".join(changed), before):
                return
        raise OSError(errno.EAGAIN, "others change it again and again", str(file))


@contextmanager
def _locked() -> Iterator[None]:
    """Keeps other programs of ours away from the file, on all machines that share the home folder."""
    folder = Path("~/.cache/digirl_dist").expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "authorized_keys.lock").open("a") as lock:
        file_system.lock(lock, wait=True)
        yield


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _replaced(file: Path, content: bytes, before: tuple[int, int, int] | None) -> bool:
    """Returns False if the file is another one by now. An empty one is removed."""
    part = file.with_name(f".{file.name}.digirl-dist-{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as copy:
            copy.write(content)
            copy.flush()
            os.fsync(copy.fileno())
        if before is not None:
            shutil.copymode(file, part)
        if _version(file) != before:
            return False
        if content:
            os.replace(part, file)
        else:
            file.unlink(missing_ok=True)
        return True
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


_LIFETIME_S = 3600.0
_LOOK_S = 10.0
_LOOKS = 3
"""So often in a row the worker program must be gone before the key goes: one that is replaced has a successor soon."""


def offer(folder: JobFolder) -> int:
    """Lets the key in until stdin ends, this process is told to end, or the worker program is gone."""
    told, tell = os.pipe()  # rather than an exception, which could come while the key is withdrawn
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(tell, b"\n"))
    file = default_file()
    python = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m"]
    command = shlex.join([*python, "digirl_dist.worker_program.courier", "--folder", str(folder.root), "--relay"])
    try:
        asked = decode(sys.stdin.buffer.readline(), Offer)
        owner = hashlib.sha256(asked.public_key.encode()).hexdigest()[:16]  # machines may share home, name and path
        allow(file, owner, asked.public_key, command, _LIFETIME_S)
    except (OSError, ValueError, ProtocolError) as error:
        write_all(1, encode(Offered(shortened(f"the relay's key cannot be let into {file}: {error}"))))
        return 1
    try:
        write_all(1, encode(Offered()))
        missed, renew_at = 0, time.monotonic() + _LIFETIME_S / 2
        while missed < _LOOKS and not select.select([0, told], [], [], _LOOK_S)[0]:
            missed = 0 if folder.program() is not None else missed + 1
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + _LIFETIME_S / 2
                allow(file, owner, asked.public_key, command, _LIFETIME_S)
    finally:
        withdraw(file, owner)
    return 0


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] != "--folder":
        print(f"usage: python -m {__spec__.name} --folder DIR", file=sys.stderr)
        return 2
    return offer(JobFolder(Path(argv[1]).expanduser().resolve()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
