"""The viewer's server: one user, one machine, nothing that changes anything.

Every address begins with a secret: a cookie would go to every other port of this machine. The address in the Host
header must be this machine's own, so that no other site's name leads here. A connection that has not shown the secret
within seconds is closed, and so is the oldest of many. Texts of workers are sent as JSON and become text nodes;
pictures are sent only if they are PNG or JPEG.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from digirl_dist.errors import DigirlDistError, TrajectoryError
from digirl_dist.report.bundle import STATIC
from digirl_dist.report.viewed import ViewedRun, clean, named
from digirl_dist.serve import door
from digirl_dist.viewer.explainer import Explainer

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_LOOK_S = 0.3
_FIRST_S = 2.0
_ROWS = 10_000
"""In one answer: those of a large run, written as text, would be most of the server's memory."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    **door.HEADERS,
}


class Viewer:
    """Serves runs on a loopback port until it is closed."""

    def __init__(self, folders: Sequence[Path], port: int = 0, trust: bool = False) -> None:
        """``port`` 0 takes a free one. Raises OSError if it is taken.

        ``trust`` lets explanations use the classes, models and servers that the folders name.
        """
        self._socket = door.on_port("127.0.0.1", port)
        self._token = secrets.token_urlsafe(24)
        self._pages = Pages(named(folders, trust))
        entrance = door.Door()
        self._server = door.server(guarded(self._pages.app(), self._token, entrance), entrance)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address with the token, which is a secret of this machine's user."""
        return f"http://127.0.0.1:{self.port}/{self._token}/"

    def serve(self) -> None:
        """Returns after Ctrl-C, or after ``close`` in another thread."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        self._pages.closing.set()
        self._server.should_exit = True


def guarded(app: ASGIApp, token: str, entrance: door.Door) -> ASGIApp:
    """Lets requests through that come from this user's browser, by this machine's own name, and only read."""
    return door.guarded(app, entrance, partial(_let_in, token), _HEADERS)


def _let_in(token: str, request: Request) -> Response | Scope:
    given, _, path = request.scope["path"].removeprefix("/").partition("/")
    if not door.is_named(request, door.LOOPBACK):
        return PlainTextResponse("this server answers to 127.0.0.1 and localhost only", 421)
    if request.method not in ("GET", "HEAD"):
        return PlainTextResponse("this server only shows", 405)
    if not door.is_secret(given, token):
        return PlainTextResponse("open the whole address that digirl-dist view printed", 403)
    return {**request.scope, "path": f"/{path}", "root_path": ""}


class Pages:
    """What there is to ask for. A thread follows the runs."""

    def __init__(self, runs: Mapping[str, ViewedRun]) -> None:
        self._runs = runs
        self._explainer = Explainer()
        self._asked = threading.Event()
        self.closing = threading.Event()

    def app(self) -> Starlette:
        """Returns the application; the requests below ``/api`` name a run."""
        routes = [
            Route("/", self._static),
            Route("/static/{name}", self._static),
            Route("/api/runs", self._names),
            Route(
                "/api/run", self._of_run(lambda run, asked: run.news(*_asked(asked, "figures", "measured", "stamp")))
            ),
            Route("/api/rows", self._of_run(lambda run, request: run.rows(_number(request, "first") or 0, _ROWS))),
            Route(
                "/api/timeline",
                self._of_run(lambda run, asked: run.timeline_news(*_asked(asked, "iterations", "events"))),
            ),
            Route(
                "/api/log",
                self._of_run(lambda run, asked: run.log(asked.query_params["worker"], _number(asked, "slot"))),
            ),
            Route("/api/status", self._of_run(lambda run, request: run.status())),
            Route("/api/episode", self._of_run(lambda run, request: run.episode(request.query_params["key"]))),
            Route("/api/explain", self._of_run(self._explain)),
            Route("/api/image", self._image),
            Route("/api/live", self._live),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        following = threading.Thread(target=self._follow, name="follow-runs", daemon=True)
        following.start()
        yield
        self.closing.set()
        self._asked.set()
        self._explainer.close()
        following.join()  # Arrow ends the process with a fatal error if it is at work when Python ends

    def _follow(self) -> None:
        self._asked.wait(_FIRST_S)  # the page comes first
        while not self.closing.is_set():
            began = time.monotonic()
            unread = 0
            for run in self._runs.values():
                with suppress(OSError):  # of folders that are moved or deleted meanwhile
                    unread += run.follow()
            took = time.monotonic() - began
            self.closing.wait(took if unread else max(_LOOK_S, 5 * took))

    def _static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        suffix = name.rsplit(".", 1)[-1]
        if name not in {each.name for each in STATIC.iterdir()} or suffix not in _TYPES:
            return PlainTextResponse("there is no such page", 404)
        return Response(STATIC.joinpath(name).read_bytes(), media_type=_TYPES[suffix])

    def _names(self, request: Request) -> Response:
        self._asked.set()
        return _json(list(self._runs))

    def _of_run(self, answer: Callable[[ViewedRun, Request], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return _json(answer(self._runs[request.query_params["run"]], request))
            except KeyError as error:
                return PlainTextResponse(f"there is no {error}", 404)
            except (DigirlDistError, RuntimeError, OSError) as error:
                return PlainTextResponse(str(error), 500)

        return respond

    def _explain(self, run: ViewedRun, request: Request) -> Any:
        asked, version = request.query_params["key"], _number(request, "version")
        return clean(self._explainer.explain(run.folder, asked, version, run.trust))

    def _image(self, request: Request) -> Response:
        asked = request.query_params
        try:
            found = self._runs[asked["run"]].image(asked["key"], _number(request, "step") or 0)
        except (KeyError, TrajectoryError):
            found = None
        return PlainTextResponse("no screenshot", 404) if found is None else Response(found[0], media_type=found[1])

    async def _live(self, request: Request) -> Response:
        """Server-sent events: one at the start, and one whenever a run has something new."""
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        told = None
        while not self.closing.is_set() and not await request.is_disconnected():
            now = [run.progress() for run in self._runs.values()]
            if now != told:
                told = now
                yield f"data: {json.dumps(now)}\n\n"
            await asyncio.sleep(_LOOK_S)


def _asked(request: Request, *names: str) -> list[str]:
    return [request.query_params.get(name, "") for name in names]


def _number(request: Request, name: str) -> int | None:
    """None for what is no whole number."""
    given = request.query_params.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else None


def _json(content: Any) -> Response:
    """In ASCII: lone surrogates pass as escapes. A text is JSON already."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return Response(text, media_type="application/json")
