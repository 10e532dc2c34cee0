"""HTTP for a ``Service``: the routes, who may ask, and the server.

``ROUTES`` is the whole interface, of which the reference page is made. Bodies are JSON of the types in ``service``,
which bound each field. An answer that is no success is ``{"error": …}``: one sentence, with the remedy.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from anyio import fail_after, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from digirl_dist.errors import CheckpointError, DigirlDistError, RunFolderError, SettingsError
from digirl_dist.serve import door
from digirl_dist.serve.journal import Entry
from digirl_dist.serve.service import Acknowledgement, Ask, NewPolicy, Refusal, Service, as_json, image_of
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, strict_json
from digirl_dist.types import Closeable, Json, T, media_type

BODY_BYTES = 2 << 20
LARGE_BODIES = 8
"""At once, each until it is answered."""
_SMALL_BYTES = 1 << 16
_UNREAD = 16
"""A body that is so many times as large ends the connection at once; who sent a smaller one reads why it is refused."""
_THREADS = 8
"""Requests at once that wait for the disk."""
_BODY_S = 20.0
_LOOK_S = 0.1
_BEAT_S = 10.0
_MOST_WAIT_S = 60
_PAGE = 1000
_SHORTEST_TOKEN = 16

_ENDED = ("landed", "infrastructure", "environment", "agent", "cancelled")


class Handler(NamedTuple):
    """A route: what it does is its function's docstring."""

    method: str
    path: str
    answer: Callable[[Service, Request], Awaitable[Response]]
    body: type | None = None


async def ask(service: Service, request: Request) -> Response:
    """Asks for a rollout or a group, and answers with what is known of each by key. A key that was asked for before
    is the same rollout: it is joined while it runs, returned once it landed, and runs again if it was lost."""
    async with _body(request, Ask) as wanted:
        return _json({"rollouts": _told(await run_in_threadpool(service.ask, wanted))}, 202)


async def follow(service: Service, request: Request) -> Response:
    """Rollouts in the order in which they were over, from the one after the cursor ``after`` (0) on; ``Last-Event-ID``
    counts too. With ``Accept: text/event-stream`` they come as they end, each as an event whose id is the cursor.
    Otherwise the answer waits up to ``wait_s`` (0 to 60) for the first one, and has at most ``limit`` (1 to 1000)."""
    streams = "text/event-stream" in request.headers.get("accept", "")
    after = _whole("after", request.headers.get("last-event-id") or request.query_params.get("after", "0"))
    if after > service.journal.newest:
        raise Refusal(400, f"after={after} is beyond {service.journal.newest}, the newest: it is another folder's")
    if streams:
        return StreamingResponse(_events(service, after), media_type="text/event-stream")
    until = time.monotonic() + _whole("wait_s", request.query_params.get("wait_s", "0"), _MOST_WAIT_S)
    limit = _whole("limit", request.query_params.get("limit", str(_PAGE)), _PAGE)
    while not (found := service.journal.after(after, limit)) and time.monotonic() < until:
        if service.closing.is_set() or await request.is_disconnected():
            break
        await asyncio.sleep(_LOOK_S)
    newest = max([after, *(entry.number for entry in found.values())])
    return _json({"rollouts": _told(found), "cursor": newest})


async def show(service: Service, request: Request) -> Response:
    """One rollout; once it landed, with its episode: task, seed, version of the policy, and each step with observation,
    action, log-probability and reward, and with the tokens of a model's answers. Screenshots are named by their
    digests."""
    key = request.path_params["key"]
    told = _told({key: service.entry(key)})[0]

    def whole() -> Response:
        episode = service.episode(key)
        return _json(told if episode is None else {**told, "episode": as_json(episode)})

    return await run_in_threadpool(whole)


async def picture(service: Service, request: Request) -> Response:
    """A screenshot of a rollout's episode, as PNG or JPEG. The same digest is the same picture."""
    key, digest = request.path_params["key"], request.path_params["digest"]
    episode = await run_in_threadpool(service.episode, key)
    image = None if episode is None else image_of(episode, digest)
    if image is None or (kind := media_type(image)) is None:
        raise Refusal(404, f"the episode of {key!r} has no picture {digest}")
    return Response(image, media_type=kind)


async def cancel(service: Service, request: Request) -> Response:
    """Has nobody run it any more: it is soon over, as ``cancelled``. One that is over stays as it is."""
    key = request.path_params["key"]
    return _json(_told({key: service.cancel(key)})[0], 202)


async def acknowledge(service: Service, request: Request) -> Response:
    """Forgets rollouts that are over, so that the server's memory has room for others. Who asks for such a key again
    gets a new rollout."""
    async with _body(request, Acknowledgement) as given:
        return _json({"acknowledged": await run_in_threadpool(service.acknowledge, given.keys)})


async def change(service: Service, request: Request) -> Response:
    """Has another policy act in the rollouts that begin from now on. Nothing of it is unpickled."""
    async with _body(request, NewPolicy) as given:
        return _json({"version": await run_in_threadpool(service.act_with, given)})


async def tasks(service: Service, request: Request) -> Response:
    """The task set."""
    return _json({"tasks": [msgspec.to_builtins(task) for task in service.fleet.tasks]})


async def health(service: Service, request: Request) -> Response:
    """200 while the server does its work; 503, and why, while the disk is full or the machines lose what they run."""
    trouble = service.trouble
    return _json({"ok": not trouble, "error": trouble}, 503 if trouble else 200)


async def status(service: Service, request: Request) -> Response:
    """How many rollouts there are, the newest cursor, and what each worker does."""
    return _json(service.status())


async def metrics(service: Service, request: Request) -> Response:
    """OpenMetrics, for Prometheus."""
    now, entrance = service.status(), request.app.state.door
    slots = sum(len(worker["slots"]) for worker in now["workers"].values())
    gauges = {"rollouts_known": now["rollouts"], "rollouts_running": now["running"], "cursor": now["cursor"]}
    gauges |= {"workers": len(now["workers"]), "slots": slots, "trouble": int(bool(service.trouble))}
    lines = ["# TYPE digirl_dist_rollouts_ended counter"]
    lines += [f'digirl_dist_rollouts_ended_total{{state="{state}"}} {service.ended[state]}' for state in _ENDED]
    lines += ["# TYPE digirl_dist_connections_turned_away counter"]
    lines += [f"digirl_dist_connections_turned_away_total {entrance.turned_away}"]
    for name, value in gauges.items():
        lines += [f"# TYPE digirl_dist_{name} gauge", f"digirl_dist_{name} {value}"]
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return Response("\n".join([*lines, "# EOF", ""]), media_type=kind)


ROUTES = (
    Handler("POST", "/rollouts", ask, Ask),
    Handler("GET", "/rollouts", follow),
    Handler("GET", "/rollouts/{key:path}", show),
    Handler("DELETE", "/rollouts/{key:path}", cancel),
    Handler("GET", "/images/{digest}/{key:path}", picture),
    Handler("POST", "/acknowledge", acknowledge, Acknowledgement),
    Handler("POST", "/policy", change, NewPolicy),
    Handler("GET", "/tasks", tasks),
    Handler("GET", "/health", health),
    Handler("GET", "/status", status),
    Handler("GET", "/metrics", metrics),
)


def _let_in(token: str, names: tuple[str, ...], request: Request) -> Response | Scope:
    """Refuses requests without the token, from a web page, or to another host name than this machine's."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if not door.is_named(request, names):
        return _error(421, f"this server answers to {' and '.join(names)}: name one of them in Host")
    if "origin" in request.headers:
        return _error(403, "this server answers to no web page: ask without the header Origin")
    if kind.lower() != "bearer" or not door.is_secret(given.strip(), token):
        return _error(401, "the token is missing or wrong: send Authorization: Bearer TOKEN, as the file has it")
    return request.scope


def application(service: Service, token: str, names: tuple[str, ...], entrance: door.Door) -> ASGIApp:
    """Returns the whole application, for requests that call this machine by one of the names."""
    routes = [
        Route(each.path, _guarded(partial(each.answer, service)), methods=[each.method], name=each.answer.__name__)
        for each in ROUTES
    ]
    app = Starlette(routes=routes, lifespan=_few_threads)
    app.state.door, app.state.large_bodies = entrance, asyncio.Semaphore(LARGE_BODIES)
    return door.guarded(app, entrance, partial(_let_in, token, names))


@asynccontextmanager
async def _few_threads(_: Starlette) -> AsyncIterator[None]:
    to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield


class Server(Closeable):
    """Serves a fleet's rollouts on a port or a Unix socket until it is closed."""

    def __init__(
        self, service: Service, token: str, at: Path | tuple[str, int], listening: socket.socket | None = None
    ) -> None:
        """``listening`` may be the socket of ``at``. Raises as ``listen``."""
        self._service = service
        self._path = at if isinstance(at, Path) else None
        self._socket = listening or listen(at)
        names = door.LOOPBACK if isinstance(at, Path) else (*door.LOOPBACK, at[0].lower())
        entrance = door.Door()
        self._server = door.server(application(service, token, names, entrance), entrance)

    @property
    def place(self) -> str:
        """Where it listens, for people."""
        if self._path is not None:
            return str(self._path)
        address, port = self._socket.getsockname()[:2]
        return f"http://{f'[{address}]' if ':' in address else address}:{port}"

    def serve(self) -> None:
        """Returns after Ctrl-C, or after ``close`` in another thread."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self._service.close()
        self._server.should_exit = True


def listen(at: Path | tuple[str, int]) -> socket.socket:
    """``at``: the path of a Unix socket, or address and port (0: a free one). Raises OSError, SettingsError."""
    return door.on_path(at) if isinstance(at, Path) else door.on_port(*at)


def token_in(file: Path) -> str:
    """Returns the token in a file that only this user may read, and makes it if it is missing. Raises SettingsError."""
    try:
        if not os.path.lexists(file):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_files.write_secret(file, secrets.token_urlsafe(32))
        with regular_file.opened(file, named=True) as opened:
            about, token = os.fstat(opened.fileno()), opened.read(4096).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"the token in {file} cannot be used: {regular_file.defect(error)}") from error
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise SettingsError(f"others may read the token in {file}: chmod 600 it, and let it be yours")
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise SettingsError(f"the token in {file} is no word of at least {_SHORTEST_TOKEN} characters: delete the file")
    return token


def _guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Turns errors into answers."""

    async def respond(request: Request) -> Response:
        try:
            return await answer(request)
        except Refusal as refusal:
            return _error(refusal.status, str(refusal))
        except (SettingsError, CheckpointError) as error:
            return _error(400, str(error))
        except RunFolderError as error:
            return _error(507, str(error))
        except (DigirlDistError, OSError) as error:
            return _error(500, str(error))
        except Exception as error:
            return _error(500, f"internal error: {error!r:.300}; please report it")

    return respond


@asynccontextmanager
async def _body(request: Request, kind: type[T]) -> AsyncIterator[T]:
    """Yields a body of the type. Raises Refusal if it is none, too large, or too slow.

    A large body has a place among few until it is answered. A small one waits for no place.
    """
    async with AsyncExitStack() as place:
        content = await _read(request, place)
        try:
            wanted = msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Refusal(400, f"the body is no {kind.__name__}: {error}") from None
        del content
        yield wanted


async def _read(request: Request, place: AsyncExitStack) -> bytearray:
    """No task of its own: a task and its exception would keep each other, and the body, until Python looks for
    garbage."""
    content, size = bytearray(), 0
    declared = int(request.headers.get("content-length", 0))  # h11 lets nothing else through
    try:
        with fail_after(_BODY_S):
            if declared <= _UNREAD * BODY_BYTES:
                async for part in request.stream():
                    if size <= _SMALL_BYTES < size + len(part):
                        await place.enter_async_context(request.app.state.large_bodies)
                    if (size := size + len(part)) <= BODY_BYTES:
                        content += part
                    elif size > _UNREAD * BODY_BYTES:
                        break
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {_BODY_S:g} s: send it whole") from None
    if max(size, declared) > BODY_BYTES:
        raise Refusal(413, f"the body has more than {BODY_BYTES:,} bytes: ask in parts")
    return content


async def _events(service: Service, after: int) -> AsyncIterator[str]:
    beat_at = time.monotonic() + _BEAT_S
    while not service.closing.is_set():
        if found := _told(service.journal.after(after, _PAGE)):
            after = found[-1]["cursor"]
            yield "".join(f"id: {told['cursor']}\ndata: {strict_json.dumps(told)}\n\n" for told in found)
            continue
        if time.monotonic() > beat_at:
            beat_at = time.monotonic() + _BEAT_S
            yield ": nothing new\n\n"
        await asyncio.sleep(_LOOK_S)


def _told(entries: Mapping[str, Entry]) -> list[dict[str, Json]]:
    return [
        {"key": key, "state": each.state, "cursor": each.number, "task": each.task.id, "seed": each.seed, **each.about}
        for key, each in entries.items()
    ]


def _whole(name: str, given: str, most: int = 2**53) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 17 and int(given) <= most):
        raise Refusal(400, f"{name}={given:.40} is no whole number from 0 to {most}")
    return int(given)


def _json(content: Any, status: int = 200) -> Response:
    return Response(strict_json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _error(status: int, error: str) -> Response:
    """The connection ends: what is left of the request is not read."""
    return Response(strict_json.dumps({"error": error}), status, {"Connection": "close"}, media_type="application/json")
