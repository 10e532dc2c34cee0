"""Every message comes across as it is; whatever is no message ends in one kind of error, at once."""

from __future__ import annotations

import json
import random
import time
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digirl_dist.capacity import Needs
from digirl_dist.errors import ProtocolError
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    MOST_REASON,
    SPOKEN,
    EpisodeManifest,
    HostMessage,
    SlotLimits,
    SlotWait,
    TensorEntry,
    WorkerMessage,
    common_protocol,
    decode_host_message,
    decode_manifest,
    decode_worker_message,
    encode,
    encode_manifest,
    shortened,
)
from digirl_dist.tasks import Key, Task, Ticket

MALFORMED_LINES = 100_000
SLOWEST_MS = 1.0

KEYS = [Key(3, 1), Key(0, 0, "evaluate")]
MANIFEST = EpisodeManifest("r1", KEYS[0], 2, 7, "000003-00001-2-w1-0", 4096, "ab12", 3, 1.5, 0.25, {"step": 1.25})
TICKET = Ticket(3, 1, Task("t", "open the clock", {"app": "clock", "n": [1, None]}), 11, 7, 1)
EVALUATION = Ticket(9, 4, Task("t"), 2**31, 9, purpose="evaluate")

HOST: list[HostMessage] = [
    messages.Hello("r1", list(SPOKEN)),
    messages.StartJob("w1", "ab", "cd", SlotLimits(), 4, Needs(60, 0.25), 2, 10, 1, 600.0),
    messages.StartJob("w1", None, "cd", SlotLimits()),
    messages.LoadPolicy(
        7, {"a.weight": TensorEntry("ab", "bfloat16", [3, 4], "float32"), "b": TensorEntry("c", "i8", [])}
    ),
    messages.Pushed("job"),
    messages.Lease(4, [TICKET, EVALUATION]),
    messages.Drop(5, KEYS, "speculation"),
    messages.Landed(["000003-00001-2-w1-0"]),
    messages.Collected(),
    messages.Action(4, {"type": "tap", "at": [0.25, 0.5]}, -0.123456789),
    messages.NoAction(5, "gone"),
    messages.Ping(),
    messages.Stop(),
]
WORKER: list[WorkerMessage] = [
    messages.Ready(4, "", "3.11.7", 4711),
    messages.Need("policy", ["ab", "cd"]),
    messages.Working(4, "2 cores carry 4", KEYS),
    messages.Loaded(7),
    messages.Ask(1, 7, (11, 2, 5), "open – the clock", 100, None, 100),
    messages.Acting(3, KEYS[0]),
    messages.EpisodeReady(MANIFEST),
    messages.UnknownFile("stray", "it is not a manifest"),
    messages.EpisodeFailed(3, KEYS[1], "the emulator ended"),
    messages.SlotChanged(3, "closed", "it failed 3 times", 2),
    messages.SlotSeconds({"step": 1.5, "policy": 0.25}),
    messages.Heartbeat(
        "waiting", 0.1, 0.2, [SlotWait("step", 1.0, 30.0, 4), SlotWait("idle", 1.0, None, None)], KEYS, 5, 2
    ),
    messages.Broken("StartJob", "a traceback"),
]


def test_the_examples_are_of_every_message() -> None:
    assert {type(message) for message in HOST} == set(get_args(HostMessage))
    assert {type(message) for message in WORKER} == set(get_args(WorkerMessage))


@pytest.mark.parametrize("message", HOST, ids=lambda message: type(message).__name__)
def test_a_message_of_the_host_comes_across_as_it_is(message: HostMessage) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1 and decode_host_message(line) == message


@pytest.mark.parametrize("message", WORKER, ids=lambda message: type(message).__name__)
def test_a_message_of_a_worker_comes_across_as_it_is(message: WorkerMessage) -> None:
    line = encode(message, b"attached")
    assert line.endswith(b"\nattached") and decode_worker_message(line.removesuffix(b"attached")) == message


@pytest.mark.parametrize("message", [*HOST, *WORKER], ids=lambda message: type(message).__name__)
def test_neither_side_takes_the_messages_of_its_own(message: HostMessage | WorkerMessage) -> None:
    theirs = decode_worker_message if message in HOST else decode_host_message
    with pytest.raises(ProtocolError):
        theirs(encode(message))


def _numbers(kind: Any) -> list[str]:
    """Names of the fields of a message that are numbers."""
    hints = get_type_hints(kind, include_extras=False)
    return [name for name, hint in hints.items() if hint in (int, float)]


WRONG_NUMBERS = ["-1", "1e400", "NaN", "Infinity", "10e999", "true", '"1"', "null", "[]", "{}", "9" * 400]
NUMBERS = [
    pytest.param(message, name, id=f"{type(message).__name__}.{name}")
    for message in WORKER
    for name in _numbers(type(message))
]


@pytest.mark.parametrize(("message", "name"), NUMBERS)
def test_every_number_of_a_worker_has_a_range(message: WorkerMessage, name: str) -> None:
    fields = json.loads(encode(message))
    for wrong in WRONG_NUMBERS:
        parts = [f"{json.dumps(key)}: {wrong if key == name else json.dumps(value)}" for key, value in fields.items()]
        with pytest.raises(ProtocolError):
            decode_worker_message(("{" + ", ".join(parts) + "}").encode())


def test_a_slot_is_in_no_state_that_there_is_not() -> None:
    fields = json.loads(encode(messages.SlotChanged(0, "long", "", 1)))
    with pytest.raises(ProtocolError, match="state"):
        decode_worker_message(json.dumps(fields | {"state": "\x1b[2J"}).encode())


def test_a_line_is_bounded_and_so_is_its_nesting() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        decode_worker_message(b" " * (MOST_BYTES + 1))
    for nested in (b"[" * 100_000, b'{"type":"broken","a":' + b"[" * 100_000):
        with pytest.raises(ProtocolError):
            decode_worker_message(nested)


def test_unknown_fields_are_ignored_so_that_versions_can_greet_each_other() -> None:
    fields = json.loads(encode(HOST[0])) | {"new": 1, "protocols": [1, *SPOKEN, 99]}
    greeting = decode_host_message(json.dumps(fields).encode())
    assert isinstance(greeting, messages.Hello) and common_protocol(greeting.protocols) == max(SPOKEN)
    assert common_protocol([1, 99]) is None


def test_a_long_reason_keeps_its_end() -> None:
    line = encode(messages.Broken("act", shortened("x" * 10**6 + "ValueError: at last")))
    message = decode_worker_message(line)
    assert isinstance(message, messages.Broken)
    assert len(message.reason) == MOST_REASON and message.reason.endswith("ValueError: at last")


def test_a_manifest_comes_across_as_it_is_and_nothing_else_is_one() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    fields = json.loads(encode_manifest(MANIFEST))
    for wrong in ({"episode_id": "../etc"}, {"size": -1}, {"run": "a b"}, {"slot": 10**9}, {"more": 1}):
        with pytest.raises(ProtocolError):
            decode_manifest(json.dumps(fields | wrong).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
TAGS = st.sampled_from([str(json.loads(encode(message))["type"]) for message in WORKER])


@pytest.mark.component
@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_message_or_one_kind_of_error(line: bytes) -> None:
    _decoded_or_refused(line)


@pytest.mark.component
@settings(max_examples=300, derandomize=True)
@given(TAGS, st.dictionaries(st.sampled_from(["slot", "key", "manifest", "seconds", "held", "reason"]), JSON))
def test_any_fields_are_a_message_or_one_kind_of_error(tag: str, fields: dict[str, Any]) -> None:
    _decoded_or_refused(json.dumps({"type": tag, **fields}).encode())


@pytest.mark.component
def test_a_hundred_thousand_malformed_lines_are_refused_at_once() -> None:
    """Mutates real lines from a fixed seed. Times are of this thread alone; the slowest in a thousand is left out."""
    draw = random.Random(0)
    lines = [encode(message) for message in WORKER]
    seconds = []
    for _ in range(MALFORMED_LINES):
        line = _mutated(draw.choice(lines), draw)
        started = time.thread_time()
        _decoded_or_refused(line)
        seconds.append(time.thread_time() - started)
    assert sorted(seconds)[-MALFORMED_LINES // 1000] * 1000 <= SLOWEST_MS


def _decoded_or_refused(line: bytes) -> None:
    try:
        message = decode_worker_message(line)
    except ProtocolError:
        return
    assert decode_worker_message(encode(message)) == message


def _mutated(line: bytes, draw: random.Random) -> bytes:
    data = bytearray(line)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data)) if data else 0
        match draw.randrange(4):
            case 0 if data:
                data[at] = draw.randrange(256)
            case 1 if data:
                del data[at : at + draw.randint(1, 9)]
            case 2:
                data[at:at] = draw.choice([b"9" * 40, b"-", b"null", b'"', b"[", b"}", b"1e999", b"\xff"])
            case _:
                data[at:at] = data[at : at + draw.randint(1, 30)]
    return bytes(data)


def test_a_struct_says_what_it_is_for() -> None:
    for kind in (*get_args(HostMessage), *get_args(WorkerMessage)):
        assert kind.__doc__ and issubclass(kind, msgspec.Struct)
