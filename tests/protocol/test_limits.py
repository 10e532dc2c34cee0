"""Limits and words at one end only: whatever one side can say, the other accepts; the rest is refused by the sender."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec import Meta

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    MOST_REASON,
    HostMessage,
    WorkerMessage,
    decode_host_message,
    decode_worker_message,
    encode,
    shortened,
)
from digirl_dist.tasks import Task, Ticket

SEEDS = range(40)
LETTERS = ["a", "-", "\N{GRINNING FACE}", "\0", "\n", '"', "\\", "\u2028", "\x7f", "\ufffd", "\udc80", "ü"]
NAMES = ["000001 (copy)", "a\nb", "\udcff\udcfe", "..", "", "x" * 5000, "\x1b[2J", "a/b", '"', LETTERS[2] * 300]
RARELY = 0.03
"""How often a field is beyond its limits: a message has up to a dozen, and one is enough."""


def anything(kind: Any, draw: random.Random) -> Any:
    """Returns a value for a field of that type: mostly at its limits, sometimes far beyond them."""
    meta = Meta()
    if get_origin(kind) is Annotated:
        kind, meta = kind.__origin__, kind.__metadata__[0]
    if get_origin(kind) in (Union, type(int | None)):
        return anything(draw.choice(get_args(kind)), draw)
    if get_origin(kind) is Literal:
        return draw.choice(get_args(kind))
    makers: dict[Any, Callable[[], Any]] = {
        bool: lambda: draw.random() < 0.5,
        int: lambda: _whole(meta, draw),
        float: lambda: _real(meta, draw),
        str: lambda: _text(meta, draw),
        type(None): lambda: None,
        Any: lambda: _json(draw),
    }
    if kind in makers:
        return makers[kind]()
    return _composed(kind, meta, draw)


def _composed(kind: Any, meta: Meta, draw: random.Random) -> Any:
    count = draw.choice([0, 1, 3, meta.max_length or 3]) + (draw.random() < RARELY)
    if get_origin(kind) is list:
        (one,) = get_args(kind)
        few = [anything(one, draw) for _ in range(min(count, 3))]
        return (few * (count // max(1, len(few)) + 1))[:count]
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return {f"{number}{anything(key, draw)}": anything(value, draw) for number in range(min(count, 20))}
    if get_origin(kind) is tuple:
        return tuple(anything(one, draw) for one in get_args(kind))
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: anything(hint, draw) for name, hint in hints.items() if not name.startswith("_")})


def _whole(meta: Meta, draw: random.Random) -> int:
    low = meta.ge if meta.ge is not None else 0
    high = meta.le if meta.le is not None else (meta.lt or 2**53 + 1) - 1
    beyond = draw.choice([low - 1, high + 1, 2**70])
    return int(beyond if draw.random() < RARELY else draw.choice([low, high, (low + high) // 2]))


def _real(meta: Meta, draw: random.Random) -> float:
    beyond = draw.choice([math.nan, math.inf, -1.0, sys.float_info.max])
    return float(beyond if draw.random() < RARELY else draw.choice([meta.ge or 0.0, meta.le or 1e300, 1 / 3, 5e-324]))


def _text(meta: Meta, draw: random.Random) -> str:
    if draw.random() < RARELY:
        return draw.choice(NAMES)
    if meta.pattern is not None:
        return draw.choice(["0", "ab", "0" * 64])
    return draw.choice(LETTERS[:-2]) * draw.choice([0, 1, meta.max_length or 100])


def _json(draw: random.Random) -> Any:
    odd = [2**70, math.nan, {"at": [0.1]}, "\udc80", np.float32(0.5), {1: 2}, "x" * 1000, object()]
    return draw.choice([None, *odd])


@pytest.mark.parametrize("kind", [*get_args(WorkerMessage), *get_args(HostMessage)], ids=lambda kind: kind.__name__)
def test_what_one_side_can_say_the_other_accepts(kind: Any) -> None:
    """Whatever is in the message: either the sender refuses it itself, or the receiver reads it."""
    decode: Any = decode_worker_message if kind in get_args(WorkerMessage) else decode_host_message
    said = 0
    for seed in SEEDS:
        message = anything(kind, random.Random(f"{kind.__name__}{seed}"))
        try:
            line = encode(message)
        except ProtocolError:
            continue
        assert isinstance(decode(line), kind) and line.count(b"\n") == 1
        said += 1
    assert said, "no message that can be said was tried"


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_can_be_reported(name: str) -> None:
    told = messages.UnknownFile(shortened(name, messages.MOST_NAME), shortened(f"{name} is none"))
    assert decode_worker_message(encode(told)) == told


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("most", [2, 256, MOST_REASON])
def test_a_reason_of_any_letters_fits(letter: str, most: int) -> None:
    for length in (0, 1, most - 1, most, most + 1, 10 * most):
        assert len(shortened(letter * length, most)) <= most
    line = encode(messages.Broken("act", shortened(letter * 10**6)))
    assert len(line) <= MOST_BYTES


def test_the_widest_heartbeat_fits_into_a_line() -> None:
    slots = [messages.SlotWait("x" * 64, 1e9 / 3, 1e9 / 7, 2**53)] * messages.MOST_SLOTS
    held = [messages.Key(2**53, 2**53, "evaluate")] * (messages.MOST_SLOTS + 64)
    assert encode(messages.Heartbeat("x" * 256, 1e9 / 3, 1e9 / 3, slots, held, 2**53, messages.MOST_SLOTS))


@pytest.mark.component
@pytest.mark.parametrize("count", [1, messages.MOST_HELD, 3 * messages.MOST_HELD])
def test_tickets_are_leased_in_as_many_messages_as_they_need(count: int) -> None:
    from fleet.test_session import sent, working

    tickets = [Ticket(0, number, Task("t", "x" * 1000), 1, 3) for number in range(count)]
    leases = sent(working().lease(tickets))
    assert [ticket for lease in leases for ticket in lease.tickets] == tickets  # type: ignore[union-attr]
    assert [lease.order for lease in leases] == list(range(1, len(leases) + 1))  # type: ignore[union-attr]
    for lease in leases:
        assert decode_host_message(encode(lease)) == lease


def test_a_task_that_no_message_holds_is_lost_with_its_reason_and_others_are_leased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fleet.test_session import sent, told, working

    monkeypatch.setattr("digirl_dist.fleet.session.MOST_HOST_BYTES", 10_000)
    large, small = Ticket(0, 0, Task("t", "x" * 10_000), 1, 3), Ticket(0, 1, Task("t"), 1, 3)
    effects = working().lease([large, small])
    (failed,) = told(effects)
    assert failed.message.key == large.key and "too large to be sent" in failed.message.reason
    assert [message.tickets for message in sent(effects)] == [[small]]  # type: ignore[union-attr]


def test_an_action_that_cannot_be_sent_costs_its_episode_alone() -> None:
    from fleet.test_session import sent, working

    from digirl_dist.fleet.outgoing import Named
    from digirl_dist.inference.requests import InferenceResult
    from digirl_dist.trajectory import Decision

    for action in ("\udc80", object()):
        (answer,) = sent(working(Named(3), agent=None).decided(InferenceResult(1, Decision(action, 0.0))))
        assert isinstance(answer, messages.NoAction) and "cannot be sent" in answer.reason
