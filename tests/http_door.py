"""``digirl-dist serve`` as a real process, its owner, and strangers who want in by raw sockets."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from digirl_dist.child_process import environment

LIMIT_S = 120.0
WORDS = (
    *("parallel=single", "bsize=2", "emulator=gymnasium", "emulator.id=CartPole-v1", "agent=generic"),
    "max_steps=12",
)
"""A fleet of this machine's, whose episodes take a moment."""
TASK = "CartPole-v1"


class Served:
    """A server under way, and a client of its owner's."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, place: str) -> None:
        self.process = process
        self.folder = folder
        self.place = place
        self.token = (folder / "serve.token").read_text()
        over = httpx.HTTPTransport(uds=place) if place.startswith("/") else None
        base = "http://localhost" if over else place
        self.owner = httpx.Client(base_url=base, headers=self.secret, timeout=LIMIT_S, transport=over)

    @property
    def secret(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def port(self) -> int:
        return int(self.place.rpartition(":")[2])

    def ask(self, key: str, **more: Any) -> dict[str, Any]:
        return answered(self.owner.post("/rollouts", json={"key": key, "task": TASK, **more}), 202)

    def over(self, after: int, count: int) -> list[dict[str, Any]]:
        """The next ``count`` that are over, by long polls."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            params = {"after": after, "wait_s": 20, "limit": count - len(found)}
            told = answered(self.owner.get("/rollouts", params=params))
            found += told["rollouts"]
            after = told["cursor"]
        return found

    def landed(self, after: int, *keys: str) -> list[dict[str, Any]]:
        """These, once they are over; others, which another test may have asked for, are passed over."""
        found: list[dict[str, Any]] = []
        while {one["key"] for one in found} != set(keys):
            (one,) = self.over(after, 1)
            after = one["cursor"]
            found += [one] if one["key"] in keys else []
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def answered(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, (answer.status_code, answer.text)
    found: dict[str, Any] = answer.json()
    return found


@contextmanager
def served(folder: Path, *more: str, words: Sequence[str] = WORDS) -> Iterator[Served]:
    command = [sys.executable, "-m", "digirl_dist", "serve", f"save_path={folder}", *words, *more]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        first = process.stdout.readline()
        assert "answers requests" in first, process.communicate(timeout=LIMIT_S)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        here = Served(process, folder, first.split(" answers ")[0])
        yield here
        here.owner.close()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.stdout.close()


Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""Sends what a stranger sends; the token is only for those who have it and misuse it."""


def _sends(text: str | bytes) -> Attack:
    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        writer.write(text.replace("TOKEN", token).encode("latin-1") if isinstance(text, str) else text)
        await writer.drain()

    return attack


def _get(*headers: str, path: str = "/rollouts", host: str = "127.0.0.1") -> Attack:
    return _sends("\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]))


def _post(body: str, *headers: str) -> Attack:
    return _sends("\r\n".join(["POST /rollouts HTTP/1.1", "Host: 127.0.0.1", *headers, "", body]))


async def _drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    for byte in b"GET /rollouts HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 60:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.3)


async def _never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    writer.write(b"POST /rollouts HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(2000):
        writer.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        await writer.drain()


async def _resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    writer.write(b"GET /rollouts HTTP/1.1\r\nHost: 127")
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _half_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    writer.write(b"GET /rollouts HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    writer.write_eof()


OWN = "Authorization: Bearer TOKEN"
STRANGERS: dict[str, Attack] = {
    "no token": _get(),
    "a wrong token": _get("Authorization: Bearer " + "x" * 43),
    "a part of the token": _get("Authorization: Bearer"),
    "a token of 16 KiB": _get("Authorization: Bearer " + "x" * 16_000),
    "a token that is no ASCII": _get("Authorization: Bearer \xff\xfe\x80"),
    "the token by another scheme": _get("Authorization: Basic TOKEN"),
    "the token in the address": _get(path="/rollouts?token=TOKEN"),
    "another host": _get(OWN, host="evil.example"),
    "a host that resolves to here": _get(OWN, host="127.0.0.1.nip.io"),
    "a host that is none": _get(OWN, host="[::1"),
    "no host": _sends("GET /rollouts HTTP/1.0\r\nAuthorization: Bearer TOKEN\r\n\r\n"),
    "two hosts": _get(OWN, "Host: evil.example"),
    "a page of another site": _get(OWN, "Origin: https://evil.example"),
    "a page of no site": _get(OWN, "Origin: null"),
    "a header of a megabyte": _get("X-Large: " + "x" * (1 << 20)),
    "10,000 headers": _get(*(f"X-{number}: x" for number in range(10_000))),
    "an address of a megabyte": _get(path="/" + "x" * (1 << 20)),
    "nothing": _sends(b""),
    "half a request": _sends(b"GET /rollouts HTTP/1.1\r\nHost: 127"),
    "a byte now and then": _drips,
    "a body without end": _never_ends,
    "a body of a petabyte": _post("x" * 100_000, "Content-Length: 1125899906842624"),
    "a body that does not come": _post("", "Content-Length: 1000"),
    "a reset": _resets,
    "half a connection": _half_closes,
    "noise": _sends(bytes(range(256)) * 40),
    "TLS": _sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500),
    "HTTP/2": _sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a WebSocket": _get("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "a hundred at once": _sends("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100),
    "two lengths": _post("x" * 9, "Content-Length: 4", "Content-Length: 9"),
    "a length and chunks": _post(
        "0\r\n\r\nGET /status HTTP/1.1\r\n\r\n", "Content-Length: 4", "Transfer-Encoding: chunked"
    ),
    "a negative length": _post("", "Content-Length: -1"),
    "a method of its own": _sends("BREW /rollouts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
}
"""What somebody without the token sends, or a page in the owner's browser that would have it."""
CLUMSY: dict[str, Attack] = {
    "a body that is no JSON": _post("[" * 9, OWN, "Content-Length: 9"),
    "a deep body": _post("[" * 200_000, OWN, "Content-Length: 200000"),
    "a body of a gigabyte": _post("x" * 100_000, OWN, "Content-Length: 1073741824"),
    "a large body that stops halfway": _post("x" * 200_000, OWN, "Content-Length: 1500000"),
    "a body of 5 MiB": _post("x" * (5 << 20), OWN, f"Content-Length: {5 << 20}"),
    "a number that is none": _get(OWN, path="/rollouts?after=" + "9" * 400),
    "a cursor of the future": _get(OWN, path="/rollouts?after=999999999"),
    "a key that nobody asked for": _get(OWN, path="/rollouts/" + "%00" * 1000),
    "a picture that is none": _get(OWN, path="/images/..%2f..%2fetc/passwd"),
}
"""What a careless client of the owner's sends."""


async def each_answer(port: int, token: str) -> dict[str, str]:
    """How each kind of request is answered; all at once."""
    kinds = {**STRANGERS, **CLUMSY}
    return dict(zip(kinds, await asyncio.gather(*(_answer(port, token, kind) for kind in kinds.values())), strict=True))


async def besiege(port: int, token: str, count: int, seed: int, at_once: int = 300) -> Counter[str]:
    """Has ``count`` requests come from outside, many at a time; returns how often each was answered how."""
    kinds = [*STRANGERS.items(), *CLUMSY.items()]
    rng, room, tally = random.Random(seed), asyncio.Semaphore(at_once), Counter[str]()

    async def one(name: str, attack: Attack) -> None:
        async with room:
            with suppress(OSError, asyncio.TimeoutError):
                tally[f"{name}: {await asyncio.wait_for(_answer(port, token, attack), LIMIT_S)}"] += 1

    await asyncio.gather(*(one(*kind) for kind in (rng.choice(kinds) for _ in range(count))))
    return tally


async def _answer(port: int, token: str, attack: Attack) -> str:
    """The status of the first answer; ``closed`` if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(OSError):  # the server hangs up in the middle
            await attack(reader, writer, token)
        first = await reader.read(1 << 16)
        while first and await reader.read(1 << 16):  # until the server hangs up: one that has the token is kept for 5 s
            pass
    except OSError:
        first = b""
    finally:
        writer.transport.abort()
    return first.split(b" ")[1].decode() if first.startswith(b"HTTP/1.1 ") else "closed"


class Owner(threading.Thread):
    """The owner, who asks, waits and reads all the while, over connections of its own."""

    def __init__(self, here: Served) -> None:
        super().__init__(daemon=True)
        self._here = here
        self._ended = threading.Event()
        self.asked = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            cursor = answered(self._here.owner.get("/status"))["cursor"]
            while not self._ended.is_set():
                with httpx.Client(base_url=self._here.place, headers=self._here.secret, timeout=LIMIT_S) as anew:
                    answered(anew.get("/health"))
                self._here.ask(f"siege/{cursor}")  # a key of its own, also where another test asked before
                cursor = self._here.over(cursor, 1)[-1]["cursor"]
                self.asked += 1
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join(LIMIT_S)


def memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
