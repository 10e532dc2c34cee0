"""The door of servers that are for one user: who has not shown the secret waits outside, few at once, for seconds."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from digirl_dist.errors import SettingsError, on_error

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STRANGERS = 256
_STRANGER_S = 5.0
"""From the connection to the end of the first request with the secret."""
_GUESTS = 256
"""Connections that have shown it; the oldest of more ends."""
_STALLED_S = 30.0
"""A guest that reads nothing of its answer for so long is turned away: the answer is in memory until it is read."""
_BACKLOG = 64
_HEADER_BYTES = 1 << 15
_RECEIVED_BYTES = 1 << 16
"""What the kernel keeps for a connection, and so what is read of it at once; asyncio would read four times as much."""


class Door:
    """The connections of a server. All calls are the event loop's."""

    def __init__(self) -> None:
        self.turned_away = 0
        """How many connections ended because they were too many, or did not show the secret in time."""
        self._strangers: OrderedDict[object, tuple[asyncio.Transport, asyncio.TimerHandle]] = OrderedDict()
        self._guests: OrderedDict[object, asyncio.Transport] = OrderedDict()
        self._readers: dict[object, asyncio.TimerHandle] = {}
        """Those that have yet to read what was written, and when they are looked at."""

    def enter(self, client: object, transport: asyncio.Transport) -> None:
        """Lets a connection wait for its first request; closes the oldest of too many."""
        end = asyncio.get_running_loop().call_later(_STRANGER_S, self._turn_away, transport)
        self._strangers[client] = transport, end
        if len(self._strangers) > _STRANGERS:
            self._turn_away(self._leave_outside(next(iter(self._strangers))))

    def admit(self, client: object) -> None:
        """Lets a connection stay: it showed the secret."""
        if (transport := self._leave_outside(client)) is not None:
            self._guests[client] = transport
            if len(self._guests) > _GUESTS:
                self._turn_away(self._guests.popitem(last=False)[1])

    def leave(self, client: object) -> None:
        """Forgets a connection, which has ended."""
        self._leave_outside(client)
        self._guests.pop(client, None)
        self.has_read(client)

    def await_reader(self, client: object, transport: asyncio.Transport) -> None:
        """Turns a client away unless it reads, from now until ``has_read``."""
        left, loop = transport.get_write_buffer_size(), asyncio.get_running_loop()
        self._readers[client] = loop.call_later(_STALLED_S, self._look_at_reader, client, transport, left)

    def has_read(self, client: object) -> None:
        if (look := self._readers.pop(client, None)) is not None:
            look.cancel()

    def _look_at_reader(self, client: object, transport: asyncio.Transport, left: int) -> None:
        if transport.get_write_buffer_size() < left:
            self.await_reader(client, transport)
        else:
            self._turn_away(transport)

    def protocol(door) -> type[H11Protocol]:
        """Returns uvicorn's protocol, with this door."""

        class Watched(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is None:  # over a Unix socket
                    self.client = ("", id(self))
                door.enter(self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                door.leave(self.client)
                super().connection_lost(exc)

            def pause_writing(self) -> None:
                super().pause_writing()
                door.await_reader(self.client, self.transport)

            def resume_writing(self) -> None:
                super().resume_writing()
                door.has_read(self.client)

        return Watched

    def _leave_outside(self, client: object) -> asyncio.Transport | None:
        if (found := self._strangers.pop(client, None)) is None:
            return None
        found[1].cancel()
        return found[0]

    def _turn_away(self, transport: asyncio.Transport | None) -> None:
        if transport is not None:
            self.turned_away += 1
            transport.abort()


def guarded(
    app: ASGIApp, door: Door, let_in: Callable[[Request], Response | Scope], headers: Mapping[str, str] = HEADERS
) -> ASGIApp:
    """Returns the application behind ``let_in``, which refuses a request or says as what it enters.

    All answers get the ``headers``.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        entered, sending = let_in(Request(scope)), _with_headers(send, headers)
        if isinstance(entered, Response):
            await entered(scope, receive, sending)
            return
        door.admit(scope["client"])
        await app(entered, receive, sending)

    return answer


def server(app: ASGIApp, door: Door) -> uvicorn.Server:
    """Returns the server of an application that has the door admit whoever shows the secret."""
    config = uvicorn.Config(
        app,
        http=door.protocol(),
        ws="none",
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def on_port(address: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 takes a free one. Raises OSError, and OverflowError for what is no port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each second answer waits 40 ms
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)  # of each connection
    return listening


def on_path(path: Path) -> socket.socket:
    """Returns a listening Unix socket that only this user may open; takes the place of one that nobody listens on.

    Raises SettingsError if something else is there, and OSError.
    """
    if os.path.lexists(path):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SettingsError(f"{path} is there, and no socket: name another path")
        with socket.socket(socket.AF_UNIX) as asking, suppress(ConnectionRefusedError):
            asking.connect(str(path))
            raise SettingsError(f"{path} is in use: another server listens there")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    with on_error(listening.close):
        os.fchmod(listening.fileno(), 0o600)  # Linux makes the file with this mode
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    return listening


def is_named(request: Request, names: Collection[str]) -> bool:
    """Whether the Host header has one of the names: another site's, which leads here, has not."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname in names
    except ValueError:
        return False


def is_secret(given: str, secret: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Returns ``send`` with headers for every answer."""
    added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sending
