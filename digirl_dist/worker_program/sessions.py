"""Sessions with environments on a worker machine: one program has any number of them, each in a thread of its own.

Frames are those of ``environments``. The first one has the packed callable that makes a session. Each further one is a
message to a session, which begins with its first: ``{"session": NUMBER, "variables": {…}, "say": TEXT}``. Without a
text, the session ends. Each text has one answer: ``{"session": NUMBER, "answer": TEXT}``, or ``"error"``, after which
the session is over.
"""

from __future__ import annotations

import base64
import json
import pickle
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from digirl_dist.errors import ActionError, DigirlDistError, on_error
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.emulator_process import guarded
from digirl_dist.rollout.slot import Slot
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.blame import described
from digirl_dist.worker_program.environments import standard_frames, write_frame

_CLOSE_S = 15.0
"""More than the guard of an emulator takes: one that is killed leaves what is below the emulator behind."""


class Session(Protocol):
    """One environment, which answers OpenEnv's WebSocket messages. Used by one thread."""

    def say(self, message: str) -> str:
        """Raises EmulatorError if the environment is lost, TrajectoryError for an answer that no episode may have."""

    def close(self) -> None: ...


class EmulatorSession:
    """An emulator, in a process of its own, as an OpenEnv environment.

    A reset has ``task`` (a JSON object, see ``tasks.Task``) and ``seed``; a step is an action, as an object, or
    ``{"action": ACTION}`` where actions are no objects. Observations have ``text``, ``image`` (base64 of a PNG or
    JPEG), ``vector``, ``success`` and ``truncated``.
    """

    def __init__(self, emulator: bytes, limits: SlotLimits, max_steps: int | None, _: Mapping[str, str]) -> None:
        """``emulator``: a packed factory. Raises EmulatorError."""
        self._folder = Path(tempfile.mkdtemp(prefix="session-"))
        factory = self._folder / "factory"
        factory.write_bytes(emulator)
        self._slot = Slot(0, factory, limits, self._folder / "log")
        self._max_steps = max_steps
        self._steps = 0
        self._is_over = True
        with on_error(self.close):
            self._slot.start()
            self._slot.wait_for_answer()

    def say(self, message: str) -> str:
        try:
            match _read(message):
                case {"type": "reset", "data": {"task": dict() as task, "seed": int() as seed}}:
                    return self._begin(msgspec.convert(task, Task), seed)
                case {"type": "step", "data": dict()} if self._is_over:
                    return error_reply("EXECUTION_ERROR", "no episode is under way: reset the environment first")
                case {"type": "step", "data": dict() as action}:
                    return self._step(action)
                case {"type": "state"}:
                    return json.dumps({"type": "state", "data": {"episode_id": None, "step_count": self._steps}})
                case {"type": "reset"}:
                    return error_reply("VALIDATION_ERROR", "a reset has a task and a seed, a whole number")
        except (ActionError, msgspec.ValidationError) as error:
            return error_reply("VALIDATION_ERROR", str(error))
        return error_reply("UNKNOWN_TYPE", f"{message[:80]!r} is neither a reset, a step nor a state")

    def close(self) -> None:
        self._slot.close()
        self._slot.wait(time.monotonic() + _CLOSE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, task: Task, seed: int) -> str:
        self._is_over = True
        self._slot.reset(task, seed)
        answer = self._slot.wait_for_answer()[0]
        self._steps, self._is_over = 0, False
        return _observation(answer, None, False, {"success": False, "truncated": False})

    def _step(self, action: dict[str, Json]) -> str:
        action.pop("metadata", None)  # every action of OpenEnv's may have one
        self._slot.step(action["action"] if action.keys() == {"action"} else action)
        answer: Transition = self._slot.wait_for_answer()[0]
        self._steps += 1
        is_cut = self._steps == self._max_steps and not answer.terminated
        self._is_over = answer.ended or is_cut
        ends = {"success": answer.success, "truncated": answer.truncated or is_cut}
        return _observation(answer.observation, answer.reward, self._is_over, ends)


def _read(message: str) -> Json:
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def _observation(seen: Observation, reward: float | None, done: bool, ends: Mapping[str, bool]) -> str:
    image = None if seen.image is None else base64.b64encode(seen.image).decode()
    vector = None if seen.vector is None else seen.vector.tolist()
    observation = {"text": seen.text, "image": image, "vector": vector, **ends}
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


def error_reply(code: str, message: str) -> str:
    """Returns OpenEnv's message for an error."""
    return json.dumps({"type": "error", "data": {"message": message, "code": code}})


def _serve() -> None:
    answers, requests = standard_frames()
    make = pickle.loads(requests.get()["hosted"])  # from the host, as everything that is packed
    writing = threading.Lock()

    def tell(number: int, content: Mapping[str, str]) -> None:
        with writing:
            answers.write(write_frame({"session": number, **content}))
            answers.flush()

    said: dict[int, queue.SimpleQueue[Any]] = {}
    while (request := requests.get()) is not None:
        number, text = request["session"], request.get("say")
        if number not in said and text is not None:
            said[number] = queue.SimpleQueue()
            begin = partial(make, request.get("variables", {}))
            threading.Thread(target=_converse, args=[begin, said[number], partial(tell, number)], daemon=True).start()
        if number in said:
            said[number].put(text)
        if text is None:
            said.pop(number, None)


def _converse(
    begin: Callable[[], Session], said: queue.SimpleQueue[str | None], tell: Callable[[Mapping[str, str]], None]
) -> None:
    session: Session | None = None
    try:
        while (message := said.get()) is not None:
            session = session or begin()
            tell({"answer": session.say(message)})
    except DigirlDistError as error:
        tell({"error": str(error)})
    except (Exception, SystemExit) as error:
        tell({"error": described(error)})
    finally:
        if session is not None:
            session.close()


if __name__ == "__main__":
    sys.exit(guarded(_serve, None))
