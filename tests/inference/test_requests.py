"""Requests and answers cross a link unchanged, and what is malformed is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from digirl_dist.errors import ProtocolError
from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceRequest,
    InferenceResult,
    RandomStream,
    reply_from,
)
from digirl_dist.protocol.messages import Action, Ask, NoAction, decode_host_message, decode_worker_message, encode
from digirl_dist.trajectory import Decision, Observation

SEEN = [
    Observation("open the clock", b"\x89PNG\n\x00", np.array([0.1, -2.5], np.float32)),
    Observation("", b"jpeg", None),
    Observation("text only"),
    Observation("", None, np.zeros(0, np.float32)),
    Observation("third", b"third", np.array([1.5], np.float32), (b"first", b"the second")),
]


def sent(seen: Observation) -> tuple[dict[str, Any], bytes]:
    """The fields of the message, and the bytes behind it."""
    message, data = InferenceRequest(3, 7, RandomStream(11, 2, 5), seen).to_message()
    return json.loads(encode(message)), data


def received(fields: dict[str, Any], data: bytes) -> InferenceRequest:
    message = decode_worker_message(json.dumps(fields).encode())
    assert isinstance(message, Ask)
    return InferenceRequest.from_message(message, data)


@pytest.mark.parametrize("seen", SEEN)
def test_a_request_comes_across_as_it_is(seen: Observation) -> None:
    came = received(*sent(seen))
    assert (came.number, came.version, came.stream.key) == (3, 7, (11, 2, 5))
    assert came.stream.rng.random() == np.random.default_rng([11, 2, 5]).random()
    assert (came.observation.text, came.observation.image) == (seen.text, seen.image)
    assert came.observation.earlier == seen.earlier
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
        {"attached": 10**12},
        {"earlier": [1]},
        {"earlier": [0] * 9},
        {"earlier": [-1, 1]},
    ],
)
def test_a_malformed_request_is_refused(wrong: dict[str, Any]) -> None:
    fields, data = sent(SEEN[0])
    with pytest.raises(ProtocolError):
        received(fields | wrong, data)


def test_answers_come_across_as_they_are() -> None:
    for answer in (
        InferenceResult(4, Decision({"type": "tap", "at": [0.25, 0.5]}, -0.1234567890123)),
        InferenceResult(4, Decision({"tokens": [7, 8]}, -1.75, (-0.25, -1.5))),
        InferenceFailure(5, "gone"),
    ):
        message = decode_host_message(encode(answer.to_message()))
        assert isinstance(message, Action | NoAction) and reply_from(message) == answer


def test_bytes_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ProtocolError, match="7 bytes are no log-probabilities"):
        reply_from(Action(4, 0, -1.0, bytes(7)))


def test_a_log_probability_that_is_not_known_comes_across_as_such() -> None:
    """An agent behind a server does not know it, and JSON has no NaN."""
    message = decode_host_message(encode(InferenceResult(4, Decision({"type": "tap"}, math.nan)).to_message()))
    assert isinstance(message, Action)
    answer = reply_from(message)
    assert isinstance(answer, InferenceResult) and math.isnan(answer.decision.log_prob)
