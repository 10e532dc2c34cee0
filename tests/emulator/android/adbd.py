"""The device's side of adb: a daemon that speaks the transport protocol to a real adb server over TCP.

Messages are 24 bytes (command, two arguments, length, checksum, command inverted) and a payload; streams are opened by
name of a service and flow one message at a time. Services: ``shell`` (also its second version), ``exec``, ``sync``,
``root``.
"""

from __future__ import annotations

import asyncio
import itertools
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

Send = Callable[[bytes], Awaitable[None]]

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
VERSION = 0x01000001
MAX_PAYLOAD = 256 * 1024
TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3
STDOUT, STDERR, EXIT = 1, 2, 3
BANNER = b"device::ro.product.name=demo;ro.product.model=Demo_Phone;ro.product.device=demo;features=shell_v2,cmd"


class Shell(Protocol):
    """What runs commands, and the files of the device by path."""

    files: dict[str, bytes]

    async def run(self, command: str, out: Send, err: Send) -> int:
        """The status of ``command``."""


class Adbd:
    """``mode``: ``device`` answers, ``offline`` never greets, ``unauthorized`` accepts no key."""

    def __init__(self, shell: Shell, mode: str = "device") -> None:
        self.shell, self.mode = shell, mode
        self.port = 0
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.serve()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the adb server went away
        finally:
            self._links.discard(link)
            link.close()

    def drop(self) -> None:
        """Lose every connection, as when the device restarts."""
        for link in list(self._links):
            link.close()

    def close(self) -> None:
        self.drop()
        if self._server is not None:
            self._server.close()


class _Link:
    """One connection of an adb server."""

    def __init__(self, daemon: Adbd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._daemon, self._reader, self._writer = daemon, reader, writer
        self._streams: dict[int, _Stream] = {}
        self._ids = itertools.count(1)

    async def serve(self) -> None:
        while True:
            command, first, second, length, _, inverted = struct.unpack("<6I", await self._reader.readexactly(24))
            assert command == inverted ^ 0xFFFFFFFF, "not an adb message"
            await self._handle(command, first, second, await self._reader.readexactly(length))

    async def _handle(self, command: int, first: int, second: int, payload: bytes) -> None:
        if command in (CNXN, AUTH):
            self._greet(command, first)
        elif command == OPEN:
            stream = _Stream(self, next(self._ids), first)
            self._streams[stream.id] = stream
            stream.task = asyncio.ensure_future(stream.serve(payload.rstrip(b"\0").decode()))
        elif (known := self._streams.get(second)) is not None:
            known.take(command, payload)
        elif command == WRTE:
            self.send(CLSE, 0, first)

    def _greet(self, command: int, kind: int) -> None:
        if self._daemon.mode == "offline" or (command == AUTH and kind == PUBLIC_KEY):
            return  # no answer: the one is dead, the other waits for a person to press "allow"
        if self._daemon.mode == "unauthorized":
            self.send(AUTH, TOKEN, 0, b"t" * 20)
        else:
            self.send(CNXN, VERSION, MAX_PAYLOAD, BANNER)

    def send(self, command: int, first: int, second: int, payload: bytes = b"") -> None:
        if not self._writer.is_closing():
            header = struct.pack(
                "<6I", command, first, second, len(payload), sum(payload) & 0xFFFFFFFF, command ^ 0xFFFFFFFF
            )
            self._writer.write(header + payload)

    def shell(self) -> Shell:
        return self._daemon.shell

    def restart(self) -> None:
        """Every connection is lost in a moment, as that of ``adb root``."""
        asyncio.get_running_loop().call_later(0.05, self._daemon.drop)

    def forget(self, stream: _Stream) -> None:
        self._streams.pop(stream.id, None)

    def close(self) -> None:
        for stream in list(self._streams.values()):
            if stream.task is not None:
                stream.task.cancel()
        with suppress(OSError, RuntimeError):
            self._writer.close()


class _Stream:
    """One service that was opened over a link."""

    def __init__(self, link: _Link, id: int, peer: int) -> None:
        self._link, self.id, self._peer = link, id, peer
        self._acknowledged = asyncio.Event()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._rest = b""
        self.task: asyncio.Future[None] | None = None

    def take(self, command: int, payload: bytes) -> None:
        if command == OKAY:
            self._acknowledged.set()
        elif command == WRTE:
            self._link.send(OKAY, self.id, self._peer)
            self._arrived.put_nowait(payload)
        elif command == CLSE and self.task is not None:
            self.task.cancel()
            self._link.forget(self)

    async def serve(self, service: str) -> None:
        name, _, rest = service.partition(":")
        if name == "root":
            await self._restart_as_root()
            return
        if name.split(",")[0] not in ("shell", "exec", "sync"):
            self._link.forget(self)
            self._link.send(CLSE, 0, self._peer)
            return
        self._link.send(OKAY, self.id, self._peer)
        if name == "sync":
            await self._sync()
        elif "v2" in name.split(","):
            await self._shell_v2(rest)
        else:
            await self._link.shell().run(rest, self.write, self.write)
        self._link.forget(self)
        self._link.send(CLSE, self.id, self._peer)

    async def _restart_as_root(self) -> None:
        self._link.send(OKAY, self.id, self._peer)
        await self.write(b"restarting adbd as root\n")
        self._link.forget(self)
        self._link.send(CLSE, self.id, self._peer)
        self._link.restart()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PAYLOAD):
            self._acknowledged.clear()
            self._link.send(WRTE, self.id, self._peer, data[start : start + MAX_PAYLOAD])
            await self._acknowledged.wait()

    async def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._rest += await self._arrived.get()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def _shell_v2(self, command: str) -> None:
        async def packet(kind: int, data: bytes) -> None:
            await self.write(struct.pack("<BI", kind, len(data)) + data)

        status = await self._link.shell().run(
            command, lambda data: packet(STDOUT, data), lambda data: packet(STDERR, data)
        )
        await packet(EXIT, bytes([status]))

    # --- files -------------------------------------------------------------------------------------------------------

    async def _sync(self) -> None:
        """Requests of the sync service until QUIT."""
        files = self._link.shell().files
        while True:
            request, length = struct.unpack("<4sI", await self.read(8))
            path = (await self.read(length)).decode()
            if request == b"QUIT":
                return
            if request == b"STAT":
                await self.write(b"STAT" + struct.pack("<III", *_entry(files, path)))
            elif request == b"RECV":
                await self._send_file(files.get(path), path)
            elif request == b"SEND":
                files[path.rpartition(",")[0]] = b"".join([part async for part in self._file_parts()])
                await self.write(b"OKAY" + struct.pack("<I", 0))
            else:
                await self._refuse(f"unknown request {request!r}")

    async def _send_file(self, content: bytes | None, path: str) -> None:
        if content is None:
            await self._refuse(f"open failed: No such file or directory: {path}")
            return
        for start in range(0, len(content), 64 * 1024):
            part = content[start : start + 64 * 1024]
            await self.write(b"DATA" + struct.pack("<I", len(part)) + part)
        await self.write(b"DONE" + struct.pack("<I", 0))

    async def _file_parts(self) -> AsyncIterator[bytes]:
        while True:
            kind, length = struct.unpack("<4sI", await self.read(8))
            if kind == b"DONE":
                return
            yield await self.read(length)

    async def _refuse(self, reason: str) -> None:
        await self.write(b"FAIL" + struct.pack("<I", len(reason)) + reason.encode())


def _entry(files: dict[str, bytes], path: str) -> tuple[int, int, int]:
    """Mode, size and time of a path; zeros where there is nothing."""
    if path in files:
        return stat.S_IFREG | 0o644, len(files[path]), 1
    inside = any(name.startswith(path.rstrip("/") + "/") for name in files)
    return (stat.S_IFDIR | 0o755, 0, 1) if inside else (0, 0, 0)
