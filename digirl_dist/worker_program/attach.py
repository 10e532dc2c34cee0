"""Joins a host to the worker program: starts it if it is not running and relays lines both ways.

``python -m digirl_dist.worker_program.attach --folder DIR --orphan-s 60 [--replace]`` is what the host runs over SSH.
It opens no port; the program listens on a Unix socket in its folder. Imports nothing heavy: it must answer at once.
``--replace`` first ends a program that no longer answers.
"""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from digirl_dist.child_process import environment, tail, write_all
from digirl_dist.protocol.job_folder import IS_TAKEN, JobFolder
from digirl_dist.protocol.messages import Broken, encode, shortened
from digirl_dist.storage.file_system import NO_LOCKS, in_words, lock, refuse_squatted

_START_LIMIT_S = 30.0
_CHUNK = 65536
_LOOK_S = 0.02
_NEVER = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *NO_LOCKS,
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
)
"""Errors of a folder that cannot be used; others come and go, as where a disk is full or a server of files away."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--orphan-s", type=float, required=True)
    parser.add_argument("--package", default="")
    parser.add_argument("--replace", action="store_true")
    options = parser.parse_args()
    wanted = options.folder.expanduser()
    folder = JobFolder(wanted.resolve())
    try:
        refuse_squatted(wanted)
        folder.create()
        _try_disk(folder)
        if options.replace:
            end_program(folder)
        pid, program = _join(folder, ["--orphan-s", str(options.orphan_s), "--package", options.package])
    except (OSError, _NotStarted) as error:
        said = in_words(error, folder.root) if isinstance(error, OSError) else str(error)
        place = getattr(error, "filename", None) or folder.root
        sys.stdout.buffer.write(encode(Broken(_during(error), shortened(f"{place}: {said}"))))
        return 1
    _relay(program)
    _await_end(folder, pid)
    print(_last_words(folder), file=sys.stderr)
    return 0


class _NotStarted(Exception):
    """The program ended as it started."""


def _during(error: Exception) -> str:
    """Returns for the host what went wrong; but for ``attach`` and ``start``, it may have passed next time."""
    match error:
        case _NotStarted():
            return "start"
        case TimeoutError(errno=None):
            return "wait"
        case OSError(errno=number) if number in _NEVER:
            return "attach"
    return "disk"


def _try_disk(folder: JobFolder) -> None:
    """Raises OSError now and with its reason, where the program could not even log it."""
    probe = folder.root / ".probe"
    try:
        with probe.open("wb") as file:
            lock(file)
            file.write(bytes(_CHUNK))
    finally:
        probe.unlink(missing_ok=True)


def _join(folder: JobFolder, options: list[str]) -> tuple[int | None, socket.socket]:
    """Connect to the program, starting it first if nobody answers. Returns its process as well, if that is known.

    Raises _NotStarted, TimeoutError, or OSError where it cannot be started.

    A folder that is taken has a program that ends, which may take the folder with it, or one that will answer.
    """
    process: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        program = _connect(folder)
        if program is not None:
            return folder.program(), program
        if process is None or process.poll() == IS_TAKEN:
            process = _start(folder, options)
        elif (status := process.poll()) is not None and status > 0:
            raise _NotStarted(f"the worker program ended with status {status}; its last lines: {_last_words(folder)}")
        elif status is not None:
            break
        time.sleep(_LOOK_S)
    ended = "" if process is None or process.poll() is None else f": it ended with status {process.returncode}"
    raise TimeoutError(f"the worker program does not answer{ended}; its last lines: {_last_words(folder)}")


def _connect(folder: JobFolder) -> socket.socket | None:
    program = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder.root)  # a program that ended may have taken along the one where we are
        program.connect(folder.socket)
    except OSError:
        program.close()
        return None
    return program


def _start(folder: JobFolder, options: list[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that it outlives this connection."""
    command = [sys.executable, "-m", "digirl_dist.worker_program.program"]
    folder.create()
    os.chdir(folder.root)
    with folder.log.open("ab") as log:
        return subprocess.Popen(
            [*command, "--folder", str(folder.root), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(),
        )


def end_program(folder: JobFolder) -> None:
    """Ends the program that holds the folder's lock, if it is one. Never touches another process."""
    pid = folder.program()
    if pid is None:
        return
    with suppress(ProcessLookupError):  # it ends by itself just now
        os.kill(pid, signal.SIGKILL)  # a number that was looked up this moment is nobody else's yet
    _await_end(folder, pid, 5.0)


def _await_end(folder: JobFolder, pid: int | None, limit_s: float = 3.0) -> None:
    """Give a program that hung up the time to end, so that whoever stopped it finds nothing left when we are gone."""
    deadline = time.monotonic() + limit_s
    while pid is not None and not folder.has_ended(pid) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _last_words(folder: JobFolder) -> str:
    """The end of the program's log; nothing if it took its folder with it, as it does when it was asked to stop."""
    return "\n".join(tail(folder.log, 8))


def _relay(program: socket.socket) -> None:
    """Copies both ways until either side ends; when it is the host, leaves at once."""
    routes = {0: program.fileno(), program.fileno(): 1}
    buffer = memoryview(bytearray(_CHUNK))  # one for all: a new one for each read lets the heap grow for days
    while True:
        for source in select.select(list(routes), [], [])[0]:
            try:
                size = os.readv(source, [buffer])
                write_all(routes[source], buffer[:size])
            except OSError:
                return
            if not size and source == 0:
                sys.exit(0)
            if not size:
                return


if __name__ == "__main__":
    sys.exit(main())
