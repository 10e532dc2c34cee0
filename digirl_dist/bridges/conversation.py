"""A client's session with an OpenEnv environment on some worker, which is repeated on another one if it is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from digirl_dist.bridges.sessions import Session, Sessions
from digirl_dist.errors import EmulatorError, WorkerError
from digirl_dist.storage.digest import digest
from digirl_dist.worker_program.sessions import error_reply

_GRACE_S = 10.0
"""An emulator's own limit ends before that of whoever waits for it."""

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]
"""What a client asks of a reset -> what its environment is asked. Raises ValueError for what cannot be."""


class Conversation:
    """One client's session. It repeats the episode in another environment where the first is lost.

    A reset without a seed gets one, so that a repeated episode is the same one. Where the environment answers otherwise
    than before all the same, the episode is given up: the client gets OpenEnv's error and may reset.
    """

    def __init__(self, sessions: Sessions, variables: Mapping[str, str], rewrite: Rewrite) -> None:
        self._sessions = sessions
        self._variables = variables
        self._rewrite = rewrite
        self._session: Session | None = None
        self._told: list[tuple[str, str]] = []
        """Messages since the last reset, and what was answered, by its digest: an answer may be as large as a film."""

    def answer(self, message: str) -> str | None:
        """Returns the environment's answer, or an error of OpenEnv's that says why there is none; None: the end."""
        try:
            kind, message = self._prepared(message)
        except ValueError as error:
            return error_reply("VALIDATION_ERROR", str(error))
        if kind == "close":
            return None
        if kind == "reset":
            self._told = []
        reasons: list[str] = []
        for _ in range(self._sessions.limits.episode_attempts):
            try:
                answer = self._ask(message)
            except _Differs as error:
                return error_reply("SESSION_ERROR", str(error))
            except (WorkerError, EmulatorError) as error:
                reasons.append(str(error).strip().splitlines()[-1])
                self._lose(error)
                continue
            except BaseException:  # such as Ctrl-C: the next message would get the answer to this one
                self.close()
                raise
            if kind in ("reset", "step", "mcp"):
                self._told.append((message, _digest(answer)))
            return answer
        return error_reply("SESSION_ERROR", f"given up after {len(reasons)} environments were lost: {reasons[-1]}")

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _lose(self, error: Exception) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._sessions.lose(session, error)

    def _prepared(self, message: str) -> tuple[str, str]:
        """Returns the kind of a message, and the message for the environment. Raises ValueError."""
        try:
            told = json.loads(message)
            kind = str(told["type"])
            if kind != "reset":
                return kind, message
            data = told.get("data") or {}
            seed = next(self._sessions.seeds) if data.get("seed") is None else data["seed"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "", message  # the environment says what is wrong with it
        return kind, json.dumps({"type": "reset", "data": self._rewrite({**data, "seed": seed})})

    def _ask(self, message: str) -> str:
        limits = self._sessions.limits
        wait_s = max(limits.reset_s, limits.step_s) + _GRACE_S
        if self._session is None:
            self._session = self._sessions.open(self._variables)
            wait_s += limits.boot_s
            for before, answer in self._told:
                if _digest(self._session.say(before, wait_s)) != answer:
                    raise _Differs("its environment was lost, and another does not repeat its episode; reset it")
        return self._session.say(message, wait_s)


class _Differs(Exception):
    """A repeated episode differs from what the client has seen."""


def _digest(answer: str) -> str:
    """Of what must be the same when an episode is repeated: all but ``metadata``, which may hold times and names."""

    def without(value: Any) -> Any:
        return (
            {key: without(each) for key, each in value.items() if key != "metadata"}
            if isinstance(value, dict)
            else value
        )

    try:
        same = json.dumps(without(json.loads(answer)), sort_keys=True)
    except (ValueError, RecursionError):
        same = answer
    return digest(same.encode(errors="surrogatepass"))
