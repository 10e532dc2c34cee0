"""A chat model behind a server, as an agent that acts and does not learn."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from digirl_dist.agent.contract import ActsAlone
from digirl_dist.agent.prompts import conversation, read_or_wait
from digirl_dist.chat import image_part
from digirl_dist.chat.client import Answered, ChatServer, Outage, key_of
from digirl_dist.emulator.touch_actions import SAID
from digirl_dist.errors import ChatAway, TrajectoryError
from digirl_dist.settings import ChatSettings
from digirl_dist.trajectory import Decision, NoDecision, Observation

_GRACE_S = 1.0


class EndpointAgent(ActsAlone):
    """Fulfils ``Agent`` as far as acting goes. Each observation is a request of its own; all go out together.

    Writing that is no action is ``wait``. A log-probability is what the server tells, NaN if it does not. The same
    ticket brings the same actions only from a server that heeds seeds.
    """

    def __init__(self, settings: ChatSettings, system: str, seeded: bool) -> None:
        """``system`` replaces the general rules; ``seeded``: each request has a seed that follows from its ticket."""
        self._settings = settings
        self._system = system
        self._seeded = seeded
        self._server: ChatServer | None = None

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> list[Decision | NoDecision]:
        """No decision where the server is away for ``outage_s``.

        Raises ChatRefused where it refuses, and SettingsError where this machine has not the key.
        """
        until = time.monotonic() + self._settings.outage_s + self._settings.answer_s + _GRACE_S
        asked = [self._ask(seen, rng) for seen, rng in zip(observations, rngs, strict=True)]
        wait(asked, until - time.monotonic())
        return [self._decision(answer) for answer in asked]

    def _ask(self, seen: Observation, rng: np.random.Generator) -> Future[Answered]:
        """In a thread that ends with the process: a server may take its time over the limit."""
        if seen.image is None:
            raise TrajectoryError("an observation has no screenshot, which this agent needs")
        chat = conversation(seen.text, image_part(seen.image), self._system)
        further = {"seed": int(rng.integers(2**31))} if self._seeded else {}
        server, future = self._connected(), Future[Answered]()

        def work() -> None:
            try:
                future.set_result(server.ask(chat, _quietly, further))
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)

        threading.Thread(target=work, name="endpoint", daemon=True).start()
        return future

    def _connected(self) -> ChatServer:
        """The key is looked for where it is needed: on the machine that acts."""
        if self._server is None:
            self._server = ChatServer(self._settings, key_of(self._settings, "agent"), "agent")
        return self._server

    def _decision(self, answer: Future[Answered]) -> Decision | NoDecision:
        if not answer.done():
            return NoDecision(f"{self._server} did not answer within its limit")
        try:
            told = answer.result()
        except ChatAway as error:
            return NoDecision(str(error))
        action: dict[str, Any] = {**read_or_wait(told.text).to_json(), SAID: told.text}
        return Decision(action, told.log_prob)


def _quietly(_: Outage) -> None:
    """Events are the host's; what an outage costs is told with the episode that is given up."""
