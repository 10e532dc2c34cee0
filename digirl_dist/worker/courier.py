"""The worker's end of the file courier: ``python -m digirl_dist.worker.courier --folder DIR``.

Requests are JSON lines on stdin, each answered by one JSON line on stdout, in order:

    {"put": PATH, "size": N, "digest": D} + N bytes   ->  {}
    {"get": PATH, "offset": K}                        ->  {"size": N} + N - K bytes
    {"delete": [PATH, ...]}                           ->  {}

or ``{"error": REASON}``, after which the stream is still in step. Paths are relative to DIR and may not leave it.
Ends with stdin. Imports little, because the host waits for the start.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from digirl_dist.job import JobFolder

_CHUNK = 1 << 20
_LAST_REQUESTS_S = 1.0


class Refused(Exception):
    """The request cannot be granted."""


class HostGone(Exception):
    """The host went away in the middle of a file."""


class Courier:
    """Answers requests about the files in ``folder``."""

    def __init__(self, folder: str, source: BinaryIO, sink: BinaryIO) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder = os.path.realpath(folder)
        self._source = source
        self._sink = sink
        self._buffer = memoryview(bytearray(_CHUNK))

    def serve(self) -> None:
        while line := self._source.readline():
            request = json.loads(line)
            if "put" in request:
                self._put(request["put"], request["size"], request["digest"])
            elif "get" in request:
                self._get(request["get"], request["offset"])
            else:
                self._delete(request["delete"])

    def _put(self, name: str, size: int, digest: str) -> None:
        """Write beside, verify, rename: under its name a file is whole or not there."""
        incoming = _Incoming(self._source, size)
        try:
            path = self._inside(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                self._write(path + ".part", incoming, digest)
                os.replace(path + ".part", path)
            except (OSError, Refused, HostGone):
                _remove(path + ".part")
                raise
        except (OSError, Refused) as error:
            incoming.skip(self._buffer)
            self._answer({"error": _reason(error)})
        else:
            self._answer({})

    def _write(self, part: str, incoming: _Incoming, digest: str) -> None:
        _remove(part)
        state = xxhash.xxh3_128()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(part, flags, 0o644), "wb", buffering=0) as file:
            while chunk := incoming.read(self._buffer):
                state.update(chunk)
                while chunk:
                    chunk = chunk[file.write(chunk) :]
        if state.hexdigest() != digest:
            raise Refused(f"the bytes that came have the digest {state.hexdigest()}, not {digest}")

    def _get(self, name: str, offset: int) -> None:
        try:
            file = open(self._inside(name), "rb", buffering=0)
        except (OSError, Refused) as error:
            self._answer({"error": _reason(error)})
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self._answer({"size": size})
            self._send(file, offset, size)

    def _send(self, file: Any, offset: int, size: int) -> None:
        """Exactly the bytes that were announced; a file that shrinks meanwhile cannot be reported and ends us."""
        file.seek(offset)
        left = max(0, size - offset)
        while left:
            count = file.readinto(self._buffer[:left])
            if not count:
                raise SystemExit(f"{file.name} shrank while it was sent")
            self._sink.write(self._buffer[:count])
            left -= count
        self._sink.flush()

    def _delete(self, names: list[str]) -> None:
        try:
            for name in names:
                _remove(self._inside(name))
        except (OSError, Refused) as error:
            self._answer({"error": _reason(error)})
        else:
            self._answer({})

    def _inside(self, name: str) -> str:
        """The absolute path; the folder it lies in is ours even after symbolic links are followed."""
        parts = name.split("/")
        if not all(parts) or ".." in parts or "." in parts or "\0" in name:
            raise Refused(f"{name!r} is not a plain relative path")
        parent = os.path.realpath(os.path.join(self._folder, *parts[:-1]))
        path = os.path.join(parent, parts[-1])
        target = os.path.realpath(path)
        if any(os.path.commonpath([self._folder, place]) != self._folder for place in (parent, target)):
            raise Refused(f"{name!r} leads out of {self._folder}")
        return path

    def _answer(self, answer: dict[str, Any]) -> None:
        self._sink.write(json.dumps(answer).encode() + b"\n")
        self._sink.flush()


class _Incoming:
    """The ``size`` bytes that follow a put."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, buffer: memoryview) -> memoryview:
        """The next bytes, in ``buffer``; empty at the end. Raises HostGone if the host goes away first."""
        if not self._left:
            return buffer[:0]
        count = self._source.readinto(buffer[: self._left])  # type: ignore[attr-defined]
        if not count:
            raise HostGone
        self._left -= count
        return buffer[:count]

    def skip(self, buffer: memoryview) -> None:
        while self.read(buffer):
            pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return str(error)


def _end_with_program(folder: JobFolder) -> None:
    """End this process soon after the program of its folder: on a dead link, ``sshd`` may not close stdin for hours."""
    while (pid := folder.program()) is None:
        time.sleep(1.0)
    with suppress(OSError):  # it has ended already
        select.select([os.pidfd_open(pid)], [], [])
    time.sleep(_LAST_REQUESTS_S)
    os._exit(0)


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] != "--folder":
        print("usage: python -m digirl_dist.worker.courier --folder DIR", file=sys.stderr)
        return 2
    folder = JobFolder(Path(argv[1]).expanduser().resolve())
    threading.Thread(target=_end_with_program, args=[folder], daemon=True).start()
    with suppress(HostGone, BrokenPipeError), open(0, "rb", _CHUNK) as source, open(1, "wb", _CHUNK) as sink:
        Courier(str(folder.root), source, sink).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
