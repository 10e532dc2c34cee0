"""A chat model behind a server, as an agent that acts and does not learn."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import msgspec
import numpy as np

from digirl_dist.agent.answers import Coordinates, action_of
from digirl_dist.agent.contract import ActsAlone, encoded
from digirl_dist.agent.prompts import about_screen, shown
from digirl_dist.chat import Messages, image_part
from digirl_dist.chat.client import BROKEN_OFF, Answered, ChatServer, Outage, Sampled, key_of
from digirl_dist.emulator.episode_limits import size
from digirl_dist.errors import AgentError, ChatAway, ChatUnfit
from digirl_dist.plain_text import in_short
from digirl_dist.settings import ChatSettings
from digirl_dist.storage.checkpoint import State
from digirl_dist.threads import fulfil
from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.types import Json
from digirl_dist.user_code.blame import blaming

_GRACE_S = 1.0
_SHOWN = 200
_FOR_TOKENS: dict[str, Json] = {"logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
"""What vLLM and SGLang, and older versions of vLLM, are asked for. Servers of others may refuse it."""


class EndpointAgent(ActsAlone):
    """Fulfils ``ServedAgent``, and ``Agent`` as far as acting goes. Each observation is a request of its own; all go
    out together.

    Writing that is no action is ``wait``. A log-probability is what the server tells, NaN if it does not. The same
    ticket brings the same actions only from a server that heeds seeds.
    """

    def __init__(
        self,
        settings: ChatSettings,
        system: str,
        seeded: bool,
        messages: Callable[[Observation], Messages] | None = None,
        read: Callable[[str], Any] | None = None,
        coordinates: Coordinates = Coordinates.shares,
        earlier: int = 0,
        tokens: bool = False,
        called: Mapping[str, str] | None = None,
    ) -> None:
        """``system`` replaces the general rules; ``seeded``: each request has a seed that follows from its ticket.

        ``messages`` makes the chat of an observation and ``read`` the action of an answer, in place of those for
        screens, of which ``earlier`` before the present one are shown. ``tokens``: ask for token ids; a server that
        refuses that is asked without. ``called``: see ``ChatServer``.
        """
        self._settings = settings
        self._messages = messages or self._about_screen
        self._system = system
        self._seeded = seeded
        self._read = read
        self._coordinates = coordinates
        self._earlier = earlier
        self._asks_tokens: bool | None = None if tokens else False
        """None: whether the server knows what that is has yet to be seen."""
        self._called = called
        self.away: Callable[[Outage], None] = lambda _: None
        """Called after each failed attempt. What a worker's outage costs is told with the episode that is given up."""
        self._server: ChatServer | None = None

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> list[Decision | NoDecision]:
        """No decision where the server is away for ``outage_s``, or breaks an answer off.

        Raises ChatRefused where it refuses, and SettingsError where this machine has not the key.
        """
        self.connect()
        until = time.monotonic() + self._settings.outage_s + self._settings.answer_s + _GRACE_S
        asked = [self._begin(seen, rng) for seen, rng in zip(observations, rngs, strict=True)]
        wait(asked, until - time.monotonic())
        return [self._decision(answer) for answer in asked]

    def load(self, version: int, state: State) -> str:
        return self._settings.model

    def unload(self, adapter: str) -> None:
        """The server has no weights of ours."""

    def decide(self, adapter: str, seen: Observation, rng: np.random.Generator) -> Decision:
        """Returns one decision.

        Raises ChatAway, also for an answer that the server broke off, ChatRefused, SettingsError where this machine has
        not the key, and AgentError for an answer that ``read`` cannot read, and for messages that are no JSON.
        """
        with blaming("Endpoint.messages", AgentError):
            chat = self._messages(seen)
        try:
            written = msgspec.Raw(msgspec.json.encode(chat))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise AgentError(f"Endpoint.messages returned what is no JSON: {in_short(error, _SHOWN)}") from error
        seed: dict[str, Json] = {"seed": int(rng.integers(2**31))} if self._seeded else {}
        answer = self._answer(written, seed)
        if answer.finish_reason in BROKEN_OFF:
            raise ChatAway(f"{self._server} broke an answer off: {answer.finish_reason}")
        try:
            action = (
                json.loads(encoded(self._read(answer.text)))  # with numbers of NumPy and torch as plain ones
                if self._read
                else action_of(answer.text, self._coordinates, shown(seen.text, self._size(seen)))
            )
        except Exception as error:  # not blamed on a line of code: the model may have written anything
            raise AgentError(
                f"Endpoint.read cannot read {answer.text[:_SHOWN]!r}: {type(error).__name__}: {in_short(error, _SHOWN)}"
            ) from error
        told = answer.sampled or Sampled([], [], None)
        return Decision(action, answer.log_prob, told.log_probs, told.tokens, told.prompt or ())

    def connect(self) -> ChatServer:
        """The key is looked for where it is needed: on the machine that acts. Raises SettingsError."""
        if self._server is None:
            self._server = ChatServer(self._settings, key_of(self._settings, "agent"), "agent", self._called)
        return self._server

    def close(self) -> None:
        """Ends waiting for the server."""
        if self._server is not None:
            self._server.close()

    def _answer(self, chat: msgspec.Raw, further: dict[str, Json]) -> Answered:
        server = self.connect()
        if self._asks_tokens is not False:
            try:
                answer = server.ask(chat, self.away, further | _FOR_TOKENS)
            except ChatUnfit:
                if self._asks_tokens:
                    raise
            else:
                self._asks_tokens = True
                return answer
        answer = server.ask(chat, self.away, further)
        self._asks_tokens = bool(self._asks_tokens)
        return answer

    def _about_screen(self, seen: Observation) -> Messages:
        return about_screen(seen, image_part, self._system, self._coordinates, self._size(seen), self._earlier)

    def _size(self, seen: Observation) -> tuple[int, int] | None:
        return size(seen.image) if seen.image and self._coordinates is Coordinates.pixels else None

    def _begin(self, seen: Observation, rng: np.random.Generator) -> Future[Decision]:
        """In a thread that ends with the process: a server may take its time over the limit."""
        future = Future[Decision]()
        work = partial(self.decide, "", seen, rng)
        threading.Thread(target=fulfil, args=[future, work], name="endpoint", daemon=True).start()
        return future

    def _decision(self, answer: Future[Decision]) -> Decision | NoDecision:
        if not answer.done():
            return NoDecision(f"{self._server} did not answer within its limit")
        try:
            return answer.result()
        except ChatAway as error:
            return NoDecision(str(error))
