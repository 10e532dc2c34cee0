"""The worker's end of the file courier: ``python -m digirl_dist.worker_program.courier --folder DIR``.

Requests are JSON lines on stdin, each answered by one JSON line on stdout, in order:

    {"put": PATH, "size": N, "digest": D, ...} + N bytes   ->  {}
    {"get": PATH, "offset": K}                             ->  {"size": N} + N - K bytes

or ``{"error": REASON}``, after which the stream is still in step. A put may say ``"offset": K``, to continue the K
bytes that an earlier attempt left in PATH.part, or ``"base": PATH, "width": W``, when its bytes are a delta (see
protocol/tensor_delta.py) against that file; D is always the digest of the whole new file. Paths are relative to DIR and
may not leave it. Ends with stdin. Imports little, because the host waits for the start.

With ``--relay`` another worker of the site asks: it may get blobs, each of which is waited for until it is there.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from digirl_dist.child_process import widen
from digirl_dist.errors import on_error
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.storage.file_system import in_words

_CHUNK = 1 << 20
_READ_AHEAD = 1 << 16
"""Smaller than a chunk, so that chunks are read to where they are wanted."""
_LONGEST_REQUEST = 1 << 16
"""Whoever has a relay's key may send one."""
_WORTH_KEEPING = 1 << 20
_LAST_REQUESTS_S = 1.0
_THERE_S = 0.05
_SUCCESSOR_S = 10.0


class Refused(Exception):
    """The request cannot be granted."""


class HostGone(Exception):
    """The host went away in the middle of a file."""


class CourierServer:
    """Answers requests about the files in ``folder``."""

    def __init__(self, folder: str, source: BinaryIO, sink: BinaryIO, is_relay: bool = False) -> None:
        """``is_relay``: another worker asks, which gets blobs and nothing else."""
        os.makedirs(folder, exist_ok=True)
        self._folder = os.path.realpath(folder)
        self._source = source
        self._sink = sink
        self._is_relay = is_relay
        self._buffer = memoryview(bytearray(_CHUNK))

    def serve(self) -> None:
        """Ends where the input does, or in a request that is longer than any."""
        while (line := self._source.readline(_LONGEST_REQUEST)).endswith(b"\n"):
            request = json.loads(line)
            if self._is_relay:
                self._pass_on(request["get"])
            elif "put" in request:
                self._put(request)
            else:
                self._get(request["get"], request["offset"])

    def _put(self, request: dict[str, Any]) -> None:
        """Write beside, verify, rename: under its name a file is whole or not there."""
        incoming = _Incoming(self._source, request["size"])
        try:
            path = self._inside(request["put"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                self._write(path + ".part", incoming, request)
                os.replace(path + ".part", path)
            except HostGone:
                _remove_small(path + ".part")
                raise
            except (OSError, ValueError, Refused):
                _remove(path + ".part")
                raise
        except (OSError, ValueError, Refused) as error:
            incoming.skip(self._buffer)
            self._answer({"error": _reason(error)})
        else:
            self._answer({})

    def _write(self, part: str, incoming: _Incoming, request: dict[str, Any]) -> None:
        state = xxhash.xxh3_128()
        with self._open_part(part, request.get("offset", 0), state) as file:
            for chunk in self._delta(incoming, request) if "base" in request else self._plain(incoming):
                state.update(chunk)
                while chunk:
                    chunk = chunk[file.write(chunk) :]
        if state.hexdigest() != request["digest"]:
            raise Refused(f"the bytes that came have the digest {state.hexdigest()}, not {request['digest']}")

    def _open_part(self, part: str, offset: int, state: Any) -> Any:
        """A new file, or what an earlier attempt left, from whose end to go on."""
        if not offset:
            _remove(part)
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (0 if offset else os.O_CREAT | os.O_EXCL)
        file = open(os.open(part, flags, 0o644), "ab+", buffering=0)
        with on_error(file.close):
            file.seek(0)
            while count := file.readinto(self._buffer):
                state.update(self._buffer[:count])
            if file.tell() != offset:
                raise Refused(f"{part} has {file.tell()} bytes by now, not {offset}")
        return file

    def _plain(self, incoming: _Incoming) -> Iterator[memoryview]:
        while chunk := incoming.read(self._buffer):
            yield chunk

    def _delta(self, incoming: _Incoming, request: dict[str, Any]) -> Iterator[memoryview]:
        from digirl_dist.protocol import tensor_delta  # only now: it imports numpy

        with open(self._inside(request["base"]), "rb") as base:
            size = os.fstat(base.fileno()).st_size
            yield from tensor_delta.decode(incoming.exactly, base.read, size, request["width"])
        if incoming.read(self._buffer):
            raise Refused("the delta goes on after its last block")

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

    def _pass_on(self, name: str) -> None:
        """Sends a blob as soon as it is there. Raises HostGone if nobody waits for it any more."""
        if not re.fullmatch("blobs/[0-9a-f]+", name):
            raise SystemExit(f"{name!r} is no blob")
        here, gone = select.poll(), select.POLLRDHUP | select.POLLHUP
        here.register(self._source, gone)
        while not os.path.exists(os.path.join(self._folder, name)):
            if here.poll(_THERE_S * 1000):
                raise HostGone
        self._get(name, 0)

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
        """Returns the next bytes, in ``buffer``; empty at the end. Raises HostGone if the host goes away first."""
        wanted = buffer[: self._left]
        if not wanted:
            return wanted
        count = self._source.readinto(wanted)  # type: ignore[attr-defined]
        if not count:
            raise HostGone
        self._left -= count
        return buffer[:count]

    def exactly(self, count: int) -> bytes:
        """Returns the next ``count`` bytes, fewer at the end. Raises HostGone."""
        taken = bytearray(min(count, self._left))
        return bytes(self.read(memoryview(taken)))

    def skip(self, buffer: memoryview) -> None:
        while self.read(buffer):
            pass


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _remove_small(part: str) -> None:
    """Keep the rest of a large file, so that the next attempt can continue it."""
    with suppress(FileNotFoundError):
        if os.path.getsize(part) < _WORTH_KEEPING:
            os.unlink(part)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        said = in_words(error, Path(error.filename or "."))
        return f"{said}: {error.filename}" if error.filename else said
    return str(error)


def _end_with_program(folder: JobFolder) -> None:
    """End this process soon after the program of its folder: on a dead link, ``sshd`` may not close stdin for hours.

    A program that is replaced has a successor in a while, unless it took its folder with it.
    """
    while (pid := folder.program()) is None:
        time.sleep(1.0)
    while pid is not None:
        while not folder.has_ended(pid):
            time.sleep(1.0)
        time.sleep(_LAST_REQUESTS_S)
        pid = _successor(folder)
    os._exit(0)


def _successor(folder: JobFolder) -> int | None:
    deadline = time.monotonic() + _SUCCESSOR_S
    while (pid := folder.program()) is None and folder.root.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    return pid


def main(argv: list[str]) -> int:
    if argv[:1] != ["--folder"] or argv[2:] not in ([], ["--relay"]):
        print("usage: python -m digirl_dist.worker_program.courier --folder DIR [--relay]", file=sys.stderr)
        return 2
    folder = JobFolder(Path(argv[1]).expanduser().resolve())
    threading.Thread(target=_end_with_program, args=[folder], daemon=True).start()
    for pipe in (0, 1):
        widen(pipe, _CHUNK)
    with suppress(HostGone, BrokenPipeError), open(0, "rb", _READ_AHEAD) as source, open(1, "wb", _READ_AHEAD) as sink:
        CourierServer(str(folder.root), source, sink, is_relay="--relay" in argv).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
