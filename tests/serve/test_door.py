"""What a connection may cost, with real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from process_watch import eventually
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from digirl_dist.serve import door

pytestmark = pytest.mark.component
SIZE = 32 << 20
"""More than the kernel takes of an answer that nobody reads."""


@contextmanager
def serving(entrance: door.Door) -> Iterator[int]:
    """A server with one long answer, for whoever asks; yields its port."""

    async def answer(request: Request) -> Response:
        entrance.admit(request.scope["client"])
        return Response(bytes(SIZE))

    server = door.server(Starlette(routes=[Route("/", answer)]), entrance)
    with door.on_port("127.0.0.1", 0) as listening:
        running = threading.Thread(target=server.run, args=[[listening]], daemon=True)
        running.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        running.join(30)


def test_who_reads_nothing_is_turned_away_and_who_reads_slowly_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_STALLED_S", 1.0)
    entrance = door.Door()
    with serving(entrance) as port:
        stalled, slow = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
        with stalled, slow:
            for each in (stalled, slow):
                each.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            came, begun = 0, time.monotonic()
            while came < SIZE and (part := slow.recv(1 << 20)):
                came += len(part)
                time.sleep(0.05)
            assert came >= SIZE and time.monotonic() - begun > 1.0
            eventually(lambda: entrance.turned_away == 1, 30)
    assert not entrance._readers and not entrance._guests
