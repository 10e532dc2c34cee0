"""Inference requests of episodes and the policy's replies, alike on the same machine and over a link."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.messages import Action, Ask, NoAction, shortened
from digirl_dist.trajectory import Decision, Observation


class RandomStream:
    """The randomness of one decision.

    It depends on ``key`` alone (the ticket's seed and index, and the step), so neither the machine nor the rest of the
    batch changes it.
    """

    def __init__(self, seed: int, index: int, step: int) -> None:
        self.key = (seed, index, step)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The generator, created at first use. Until then a stream is three numbers, even when sent to a process."""
        return np.random.default_rng(self.key)


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """A request for the next action in one step of an episode. ``number`` identifies it among its sender's requests."""

    number: int
    version: int
    stream: RandomStream
    observation: Observation

    def to_message(self) -> tuple[Ask, bytes]:
        """Returns the message and the bytes that go with it: encoded image, vector as float32, earlier images."""
        seen = self.observation
        image, vector = seen.image, None if seen.vector is None else np.asarray(seen.vector, "<f4").tobytes()
        data = b"".join([image or b"", vector or b"", *seen.earlier])
        image_size = None if image is None else len(image)
        vector_size = None if vector is None else len(vector)
        sizes = image_size, vector_size, len(data), [len(earlier) for earlier in seen.earlier]
        return Ask(self.number, self.version, self.stream.key, seen.text, *sizes), data

    @classmethod
    def from_message(cls, ask: Ask, data: bytes) -> InferenceRequest:
        """Inverts ``to_message``. Raises ProtocolError if the bytes differ from those that the message announces."""
        rest = ask.vector or 0
        ends = [*accumulate([ask.image or 0, rest, *ask.earlier])]
        if ends[-1] != len(data) or rest % 4:
            raise ProtocolError(f"{len(data)} bytes came with an image of {ask.image} and a vector of {ask.vector}")
        image, vector, *earlier = (data[start:end] for start, end in zip([0, *ends], ends, strict=False))
        seen = Observation(
            ask.text,
            None if ask.image is None else image,
            None if ask.vector is None else np.frombuffer(vector, "<f4").astype(np.float32),
            tuple(earlier),
        )
        return cls(ask.number, ask.version, RandomStream(*ask.stream), seen)


@dataclass(frozen=True)
class InferenceResult:
    """The decision for the request of that number."""

    number: int
    decision: Decision

    def to_message(self) -> Action:
        told = self.decision
        log_prob, of_tokens = told.log_prob, np.asarray(told.token_log_probs, "<f4").tobytes()
        written, read = (np.asarray(each, "<i4").tobytes() for each in (told.tokens, told.prompt_tokens))
        known = None if math.isnan(log_prob) else log_prob
        return Action(self.number, told.action, known, of_tokens, written, read, told.policy_version)


@dataclass(frozen=True)
class InferenceFailure:
    """The reason why the request of that number has no decision; its episode must run again."""

    number: int
    reason: str

    def to_message(self) -> NoAction:
        return NoAction(self.number, shortened(self.reason))


InferenceReply = InferenceResult | InferenceFailure


def reply_from(message: Action | NoAction) -> InferenceReply:
    if isinstance(message, NoAction):
        return InferenceFailure(message.number, message.reason)
    log_prob = math.nan if message.log_prob is None else message.log_prob
    if len(message.token_log_probs) % 4:
        raise ProtocolError(f"{len(message.token_log_probs)} bytes are no log-probabilities in float32")
    if len(message.tokens) % 4 or len(message.prompt_tokens) % 4:
        raise ProtocolError("the bytes of tokens are no numbers of 32 bits")
    of_tokens = tuple(np.frombuffer(message.token_log_probs, "<f4").tolist())
    written, read = (tuple(np.frombuffer(each, "<i4").tolist()) for each in (message.tokens, message.prompt_tokens))
    decision = Decision(message.action, log_prob, of_tokens, written, read, message.policy_version)
    return InferenceResult(message.number, decision)


def result(request: InferenceRequest, decision: Decision, version: int) -> InferenceResult:
    """Returns the reply to a request when that version acted; a step is stamped with it if its episode has another."""
    stamped = decision if version == request.version else replace(decision, policy_version=version)
    return InferenceResult(request.number, stamped)
