"""Questions and answers cross a link unchanged, and what is malformed is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceRequest,
    InferenceResult,
    RandomStream,
    reply_from_wire,
)
from digirl_dist.trajectory import Decision, Observation

SEEN = [
    Observation("open the clock", b"\x89PNG\n\x00", np.array([0.1, -2.5], np.float32)),
    Observation("", b"jpeg", None),
    Observation("text only"),
    Observation("", None, np.zeros(0, np.float32)),
]


@pytest.mark.parametrize("seen", SEEN)
def test_a_question_comes_across_as_it_is(seen: Observation) -> None:
    content, data = InferenceRequest(3, 7, RandomStream(11, 2, 5), seen).to_wire()
    came = InferenceRequest.from_wire(json.loads(json.dumps(content)), data)
    assert (came.number, came.version, came.stream.key) == (3, 7, (11, 2, 5))
    assert came.stream.rng.random() == np.random.default_rng([11, 2, 5]).random()
    assert (came.observation.text, came.observation.image) == (seen.text, seen.image)
    before, after = seen.vector, came.observation.vector
    assert (before is None) == (after is None)
    assert before is None or (after is not None and after.dtype == np.float32 and np.array_equal(before, after))


@pytest.mark.parametrize(
    "wrong",
    [
        {"stream": [1, -2, 3]},
        {"stream": [1, 2]},
        {"number": True},
        {"version": "7"},
        {"text": None},
        {"image": 5},
        {"image": -1},
        {"vector": 7},
    ],
)
def test_a_malformed_question_is_refused(wrong: dict[str, Any]) -> None:
    content, data = InferenceRequest(3, 7, RandomStream(11, 2, 5), SEEN[0]).to_wire()
    with pytest.raises(ValueError):
        InferenceRequest.from_wire(content | wrong, data)


def test_answers_come_across_as_they_are() -> None:
    for answer in (
        InferenceResult(4, Decision({"type": "tap", "at": [0.25, 0.5]}, -0.1234567890123)),
        InferenceFailure(5, "gone"),
    ):
        assert reply_from_wire(json.loads(json.dumps(answer.to_wire()))) == answer
