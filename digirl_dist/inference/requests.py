"""What an episode asks its policy, and what it is told; the same beside the emulators and over a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json


class RandomStream:
    """The randomness of one decision.

    It follows from ``key`` alone (the ticket's seed and index, and the step), so it is the same wherever and with
    whichever others it is decided.
    """

    def __init__(self, seed: int, index: int, step: int) -> None:
        self.key = (seed, index, step)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Made at first use; until then a stream is three numbers, also where it is sent to another process."""
        return np.random.default_rng(self.key)


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """What to do next, in one step of one episode. ``number`` names it among those of its asker."""

    number: int
    version: int
    stream: RandomStream
    observation: Observation

    def to_wire(self) -> tuple[dict[str, Json], bytes]:
        """JSON, and the bytes that go with it: the image as it was encoded, then the vector as float32."""
        seen = self.observation
        vector = None if seen.vector is None else np.asarray(seen.vector, "<f4").tobytes()
        content = {
            "number": self.number,
            "version": self.version,
            "stream": list(self.stream.key),
            "text": seen.text,
            "image": None if seen.image is None else len(seen.image),
            "vector": None if vector is None else len(vector),
        }
        return content, (seen.image or b"") + (vector or b"")

    @classmethod
    def from_wire(cls, content: Mapping[str, Json], data: bytes) -> InferenceRequest:
        """Checks every part, because it came from another machine. Raises ValueError or KeyError."""
        seed, index, step = (_natural(part) for part in content["stream"])
        image, vector = content["image"], content["vector"]
        split = 0 if image is None else _natural(image)
        if split + (0 if vector is None else _natural(vector)) != len(data):
            raise ValueError(f"{len(data)} bytes came with an image of {image} and a vector of {vector}")
        if not isinstance(content["text"], str):
            raise ValueError(f"text is {content['text']!r}")
        seen = Observation(
            content["text"],
            None if image is None else data[:split],
            None if vector is None else np.frombuffer(data, "<f4", offset=split).astype(np.float32),
        )
        return cls(_natural(content["number"]), _natural(content["version"]), RandomStream(seed, index, step), seen)


@dataclass(frozen=True)
class InferenceResult:
    """The answer to the request of that number."""

    number: int
    decision: Decision

    def to_wire(self) -> dict[str, Json]:
        return {"number": self.number, "action": self.decision.action, "log_prob": self.decision.log_prob}


@dataclass(frozen=True)
class InferenceFailure:
    """The request of that number has no answer, for this reason; its episode must run again."""

    number: int
    reason: str

    def to_wire(self) -> dict[str, Json]:
        return {"number": self.number, "reason": self.reason}


InferenceReply = InferenceResult | InferenceFailure


def reply_from_wire(content: Mapping[str, Json]) -> InferenceReply:
    if "reason" in content:
        return InferenceFailure(content["number"], content["reason"])
    return InferenceResult(content["number"], Decision(content["action"], content["log_prob"]))


def _natural(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number from 0")
    return value
