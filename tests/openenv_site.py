"""A server that speaks OpenEnv's messages as openenv 0.10 does: a walk on a line, and an echo in words.

OpenEnv itself would bring Gradio, 110 MB, and an older Pillow; ``examples/trl_grpo.py`` runs with the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

_WALK = {
    "properties": {
        "metadata": {"type": "object"},
        "direction": {"$ref": "#/$defs/Direction"},
        "length": {"type": "integer", "minimum": 1, "maximum": 3},
        "note": {"type": "string", "default": ""},
    },
    "required": ["direction", "length"],
    "$defs": {"Direction": {"enum": ["left", "right"], "type": "string"}},
}
_ECHO = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
_SEEN = {
    "properties": {
        "hint": {"type": "string"},
        "place": {"type": "integer"},
        "latest": {"type": "array"},
        "goal": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
}
_ODD = os.environ.get("ODD", "")
"""What every observation is replaced by: a text, or nothing at all (hang); or what the schema is (drip, types)."""
_IS_ECHO = os.environ.get("SITE") == "echo"


class Session:
    """The environment of one session."""

    def __init__(self) -> None:
        self._place = self._steps = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"type": "reset", "data": data}:
                self._place, self._steps = random.Random(data.get("seed")).randrange(-3, 4), 0
                return self._observation("begin", 0.0)
            case {"type": "step", "data": {"message": str() as said}} if _IS_ECHO:
                self._steps += 1
                return self._observation(said, len(said) / 10)
            case {"type": "step", "data": {"direction": ("left" | "right") as way, "length": int() as length}}:
                self._steps += 1
                self._place += length if way == "right" else -length
                return self._observation(way, float(self._place == 5))
            case {"type": "state"}:
                return {"type": "state", "data": {"step_count": self._steps}}
            case {"type": "step"}:
                return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"}}
        return {"type": "error", "data": {"message": "unknown", "code": "UNKNOWN_TYPE"}}

    def _observation(self, hint: str, reward: float) -> dict[str, Any]:
        seen = {"hint": hint, "place": self._place, "latest": [self._place, self._steps], "goal": None}
        told = {"observation": {**seen, "metadata": {"pid": os.getpid()}}, "reward": reward}
        return {"type": "observation", "data": {**told, "done": self._place >= 5, "metadata": {"pid": os.getpid()}}}


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "healthy"})


async def drip() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.1)


async def schema(_: Request) -> Response:
    if _ODD == "drip":
        return StreamingResponse(drip())
    if _ODD == "types":
        return JSONResponse({"observation": {"properties": 7}})
    return JSONResponse({"action": _ECHO if _IS_ECHO else _WALK, "observation": _SEEN, "state": {}})


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    session = Session()
    try:
        while (message := json.loads(await socket.receive_text())).get("type") != "close":
            if message.get("data", {}).get("note") == "die":
                os._exit(3)
            if _ODD == "hang":
                await asyncio.sleep(1000)
            await socket.send_text(_ODD or json.dumps(session.answer(message)))
        await socket.close()
    except WebSocketDisconnect:
        pass


TASKS = [{"id": f"walk-{index}", "index": index, "question": "Where to?"} for index in range(3)]


async def environments(_: Request) -> JSONResponse:
    return JSONResponse(["walk_env"] if os.environ.get("TASKS") else ["walk_env", "another"])


async def splits(_: Request) -> JSONResponse:
    return JSONResponse([{"name": "test", "type": "test"}])


async def tasks(request: Request) -> JSONResponse:
    split = (await request.json())["split"]
    return JSONResponse({"tasks": TASKS if split == "test" else None, "env_name": "walk_env"})


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/schema", schema),
        Route("/list_environments", environments),
        Route("/walk_env/splits", splits),
        Route("/walk_env/tasks", tasks, methods=["POST"]),
        WebSocketRoute("/ws", talk),
    ]
)
