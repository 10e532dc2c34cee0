"""The host's policies, asked over the link: this machine runs emulators and needs nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from digirl_dist.errors import ProtocolError
from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceReply,
    InferenceRequest,
    RandomStream,
    reply_from,
)
from digirl_dist.protocol.messages import Action, NoAction
from digirl_dist.types import Json
from digirl_dist.worker_program.link import Link


class RemotePolicies:
    """Versions that the host acts with. Fulfils ``rollout.Policies``; takes the place of ``LocalPolicies``."""

    waiting = "the host's policy"

    def __init__(self, link: Link, limit_s: float) -> None:
        self.limit_s = limit_s
        self._link = link
        self._serving: set[int] = set()
        self._open: dict[int, tuple[InferenceRequest, float]] = {}
        """Questions by number, and when they must be answered at the latest (monotonic)."""
        self._answers: list[InferenceReply] = []

    def load(self, version: int, state: Mapping[str, Json]) -> None:
        """Notes that the host acts with ``version``; ``state`` has no weights."""
        self._serving.add(version)

    def same(self, version: int, other: int) -> None:
        self._serving.add(version)

    def retire(self, keep: set[int]) -> None:
        self._serving &= keep

    def expect(self, stream: RandomStream) -> None:
        """Its generator is made on the host."""

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        """Sends each request in a message of its own, so that heartbeats find room between large images."""
        for request in requests:
            try:
                self._send(request)
            except ProtocolError as error:
                reason = (
                    f"its observation cannot be sent to the host's policy: {error} -> inference=worker has no limit"
                )
                self._answers.append(InferenceFailure(request.number, reason))
            else:
                self._open[request.number] = request, time.monotonic() + self.limit_s

    def ask_again(self) -> None:
        """Resends unanswered requests to a host that has come anew."""
        for request, _ in self._open.values():
            self._send(request)

    def receive(self, message: Action | NoAction) -> None:
        """Takes in what the host answered, perhaps twice, or too late."""
        answer = reply_from(message)
        if self._open.pop(answer.number, None) is not None:
            self._answers.append(answer)

    def answers(self) -> list[InferenceReply]:
        now = time.monotonic()
        overdue = [number for number, (_, until) in self._open.items() if now > until]
        for number in overdue:
            del self._open[number]
            self._answers.append(
                InferenceFailure(number, f"the host's policy did not answer within {self.limit_s:g} s")
            )
        answers, self._answers = self._answers, []
        return answers

    def _send(self, request: InferenceRequest) -> None:
        self._link.send(*request.to_message())

    def __contains__(self, version: object) -> bool:
        return version in self._serving
