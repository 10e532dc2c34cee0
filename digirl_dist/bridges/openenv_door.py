"""The door of a fleet's OpenEnv environments: a port of the loopback with OpenEnv's WebSocket and Task API."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from digirl_dist.bridges.conversation import Conversation
from digirl_dist.bridges.task_api import TaskApi
from digirl_dist.types import Json
from digirl_dist.worker_program.sessions import error_reply

_MOST_BYTES = 64 << 20
_MOST_QUERY = 1 << 16
_MOST_SESSIONS = 2048
_LOOPBACK = "127.0.0.1"
_READY_S = 10.0


class Door:
    """Serves until it is closed. Every address begins with a secret, so other users of this machine get no further."""

    def __init__(self, name: str, tasks: TaskApi) -> None:
        """``name`` is the environment's in OpenEnv's Task API."""
        self._name = name
        self.admitted: dict[str, Callable[[], Conversation]] = {}
        """What begins a session, by the secret that leads to it."""
        self._tasks = tasks
        self._threads = ThreadPoolExecutor(_MOST_SESSIONS, "openenv")
        self._talking = 0
        listening = socket.create_server((_LOOPBACK, 0))
        self.address = f"http://{_LOOPBACK}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            Starlette(routes=self._routes()),
            ws_max_size=_MOST_BYTES,
            ws_per_message_deflate=False,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        threading.Thread(target=self._server.run, args=[[listening]], name="openenv-door", daemon=True).start()
        until = time.monotonic() + _READY_S
        while not self._server.started and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        self.admitted.clear()
        self._server.should_exit = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _routes(self) -> list[Route | WebSocketRoute]:
        tasks = self._tasks
        told: dict[str, Callable[[], Json]] = {
            "health": lambda: {"status": "healthy"},
            "list_environments": lambda: [self._name],
            "{name}/splits": lambda: [{"name": name, "type": name} for name in tasks.list_splits()],
        }
        queries: dict[str, Callable[..., Json]] = {
            "tasks": lambda split: {"tasks": tasks.list_tasks(split), "env_name": self._name},
            "num_tasks": lambda split: {"num_tasks": tasks.num_tasks(split)},
            "task": lambda split, index: {"task": tasks.get_task(split, index)},
            "task_range": lambda split, start=None, stop=None: {"tasks": tasks.get_task_range(split, start, stop)},
        }
        return [
            *(Route(f"/{{secret}}/{path}", partial(self._tell, answer)) for path, answer in told.items()),
            *(
                Route(f"/{{secret}}/{{name}}/{path}", partial(self._query, method), methods=["POST"])
                for path, method in queries.items()
            ),
            WebSocketRoute("/{secret}/ws", self._talk),
        ]

    def _knows(self, request: Request | WebSocket) -> bool:
        asked = request.path_params
        return asked["secret"] in self.admitted and asked.get("name", self._name) == self._name

    async def _tell(self, answer: Callable[[], Json], request: Request) -> Response:
        return JSONResponse(answer()) if self._knows(request) else Response(status_code=404)

    async def _query(self, method: Callable[..., Json], request: Request) -> Response:
        """Answers a query of the Task API, whose arguments are a JSON object."""
        if not self._knows(request):
            return Response(status_code=404)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MOST_QUERY:
                return JSONResponse({"detail": f"a query has at most {_MOST_QUERY} bytes"}, 413)
        try:
            return JSONResponse(method(**json.loads(body)))
        except (ValueError, TypeError, RecursionError) as error:
            return JSONResponse({"detail": str(error)}, 400)

    async def _talk(self, socket: WebSocket) -> None:
        if not self._knows(socket):
            await socket.close()  # before it is accepted: 403
            return
        await socket.accept()
        if self._talking >= _MOST_SESSIONS:
            await socket.send_text(error_reply("CAPACITY_REACHED", f"there are {_MOST_SESSIONS} sessions already"))
            await socket.close()
            return
        conversation = self.admitted[socket.path_params["secret"]]()
        self._talking += 1
        try:
            while (answer := await self._answer(conversation, await socket.receive_text())) is not None:
                await socket.send_text(answer)
            await socket.close()
        except (WebSocketDisconnect, KeyError, RuntimeError):
            pass  # it left, sent no text, or this process ends
        finally:
            self._talking -= 1
            self._threads.submit(conversation.close)

    async def _answer(self, conversation: Conversation, message: str) -> str | None:
        return await asyncio.get_running_loop().run_in_executor(self._threads, conversation.answer, message)
