"""What a hostile worker says and sends: a table of small changes to the messages and files of an honest one.

``LIES`` has them by name. Those of single fields follow from the message types, so a new message or field has its own.
Lies of valid content are in ``content.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import msgspec

from chaos.rows import Rows
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import Ask, Broken, WorkerMessage

Message = dict[str, Any]
Lines = Iterator[bytes]

HUGE = 987654321012345678909
"""Stands for 10 to the power of 400, which no JSON library of ours would write."""


@dataclass
class State:
    """What the liar remembers of its connection."""

    leased: list[Message] = field(default_factory=list)
    """Tickets that it was leased, the newest last."""
    last: dict[str, Message] = field(default_factory=dict)
    """The newest message of each type, the host's included, as an honest worker says and hears them."""
    folder: JobFolder | None = None
    """Where the program keeps its episodes."""
    said: bytes = b""
    """What is said again and again, once it was made."""
    later: list[tuple[float, Message]] = field(default_factory=list)
    """What the liar keeps back, and until when, in monotonic seconds."""


@dataclass(frozen=True)
class Lie:
    """``say`` changes a message of the program, ``hear`` answers one of the host (None: passes it on), ``now_and_then``
    adds lines every ``every_s`` seconds. ``send`` changes an answer of the file server: its line, and its bytes.
    ``forge`` changes the rows of an episode before they are announced, as far as a share in (0, 1] of its full size.

    ``is_bounded``: the host believes it within bounds, so nobody is named. ``stands``: the limit of the run that must
    pass before it differs from what an honest worker may do; of files, the time that one may stand still.
    """

    name: str
    say: Callable[[Message, State], Lines] | None = None
    hear: Callable[[Message, State], Lines | None] | None = None
    now_and_then: Callable[[State], Lines] | None = None
    every_s: float = 0.5
    send: Callable[[Message, Iterator[bytes]], Lines] | None = None
    forge: Callable[[Rows, float], None] | None = None
    drips: bool = False
    """Whether all output comes by a byte a second."""
    line_s: float = 0.0
    """How long the end of each line is kept back."""
    is_heavy: bool = False
    """Whether its files are larger than the small disks of ``script/chaos --faults``."""
    screens: bool = False
    """Whether it needs an emulator that shows screens."""
    is_bounded: bool = False
    stands: str = ""


def line(message: Any) -> bytes:
    return json.dumps(message).encode().replace(str(HUGE).encode(), b"1" + 400 * b"0") + b"\n"


def changed(kind: str, change: Callable[[Message, State], Any]) -> Callable[[Message, State], Lines]:
    """Changes messages of one type."""

    def say(message: Message, state: State) -> Lines:
        if message["type"] == kind:
            change(message, state)
        yield line(message)

    return say


def _set(*path: str, to: Any) -> Callable[[Message, State], None]:
    def change(message: Message, _: State) -> None:
        inner = message
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return change


_UNFIT: Mapping[str, Any] = {
    "a huge number": HUGE,
    "a negative number": -1,
    "a list of lists": [[[]]],
    "a long text": "x" * 300_000,
}
_RARE = (Ask, Broken)
"""Messages that a run like this never sees."""
_SELDOM: Mapping[str, Message] = {
    "need": {"what": "policy", "digests": []},
    "unknown_file": {"episode": "x", "reason": ""},
    "episode_failed": {"slot": 0, "key": [0, 0, "train"], "reason": ""},
    "slot_changed": {"slot": 0, "state": "ready", "reason": "", "in_service": 1},
    "slot_seconds": {"seconds": {}},
}
"""Messages that do not come by themselves within seconds, as they are made up."""


def of_fields() -> Iterator[Lie]:
    """Yields, for each field of each message, values that it cannot have."""
    kinds = [kind for kind in get_args(WorkerMessage) if kind not in _RARE]
    pairs = [(kind.__struct_config__.tag, one) for kind in kinds for one in msgspec.structs.fields(kind)]
    for number, (tag, one) in enumerate(pairs):
        what = list(_UNFIT)[number % len(_UNFIT)]
        name = f"{tag}.{one.name} is {what}"
        if tag in _SELDOM:
            said = line({"type": tag, **_SELDOM[tag], one.name: _UNFIT[what]})
            yield Lie(name, now_and_then=partial(_says, said))
        else:
            yield Lie(name, changed(tag, _set(one.name, to=_UNFIT[what])))


def _says(said: bytes, _: State) -> Lines:
    yield said


def of_manifests() -> Iterator[Lie]:
    """Yields claims about an episode that lies ready."""
    claims = {
        "run": "another", "size": 10**15, "digest": "0" * 32, "attempt": 7, "policy_version": 999_999,
        "episode_id": "../../etc/passwd", "key": [0, 10**6, "train"],
    }  # fmt: skip
    for name, to in claims.items():
        yield Lie(f"an episode's {name} is {to!r}", changed("episode_ready", _set("manifest", name, to=to)))
    for name, to in {"seconds": 1e9, "age_s": 1e9, "spent": {"step": 1e-9}}.items():
        lie = changed("episode_ready", _set("manifest", name, to=to))
        yield Lie(f"an episode's {name} is {to!r}", lie, is_bounded=True)


def _fails_all(message: Message, state: State) -> Lines | None:
    if message["type"] != "lease":
        return None
    return (line(_failed(ticket)) for ticket in message["tickets"])


def _failed(ticket: Message) -> Message:
    key = [ticket["iteration"], ticket["index"], ticket.get("purpose", "train")]
    return {"type": "episode_failed", "slot": 0, "key": key, "reason": "no reason"}


def _swallows_leases(message: Message, _: State) -> Lines | None:
    return iter(()) if message["type"] == "lease" else None


def _claims_what_it_swallows(message: Message, state: State) -> Lines:
    if message["type"] == "heartbeat":
        message["held"] = [[one["iteration"], one["index"], one.get("purpose", "train")] for one in state.leased]
        message["order"] = state.last.get("order", {}).get("order", message["order"])
    if message["type"] in ("heartbeat", "ready", "need", "working", "loaded"):
        yield line(message)


def _twice(message: Message, _: State) -> Lines:
    yield line(message)
    if message["type"] == "episode_ready":
        message["manifest"]["episode_id"] += "-again"
        message["manifest"]["digest"] = "0" * 32
        for _number in range(50):
            yield line(message)


def _for_others(state: State) -> Lines:
    """Announces episodes, and failures, of tickets that others may hold."""
    ready = state.last.get("episode_ready")
    if ready is None:
        return
    for number in range(24):
        manifest = {**ready["manifest"], "episode_id": f"mine-{number}"}
        manifest["key"] = [manifest["key"][0], number, manifest["key"][2]]
        yield line({**ready, "manifest": manifest})
        yield line(_failed({"iteration": manifest["key"][0], "index": number}))


def _flood(kind: str) -> Callable[[State], Lines]:
    def flood(state: State) -> Lines:
        said = state.last.get(kind) or (_SELDOM[kind] | {"type": kind} if kind in _SELDOM else None)
        until = time.monotonic() + 0.4
        while said and time.monotonic() < until:
            yield line(said) * 20

    return flood


def _only(*kinds: str) -> Callable[[Message, State], Lines]:
    return lambda message, _: iter([line(message)] if message["type"] in kinds else [])


def of_behaviour() -> Iterator[Lie]:
    """Yields claims about slots and tickets, floods, and silence."""
    for kind in ("heartbeat", "working", "loaded", "episode_ready", "acting", "slot_changed", "ready", "need"):
        yield Lie(f"a flood of {kind}", say=None, now_and_then=_flood(kind))
    stray = line({"type": "unknown_file", "episode": "x", "reason": "\x1b[2J" + "r" * 30_000})
    yield Lie("a flood of unknown_file", now_and_then=lambda _: iter([stray] * 500))
    yield Lie("a line without end", now_and_then=lambda _: iter([b'{"type":"' + b"x" * (1 << 20)]), every_s=0.05)
    yield Lie("no messages at all", now_and_then=lambda _: iter([b"\0\xff{}\n" * 100]))
    yield Lie("JSON that nests without end", now_and_then=lambda _: iter([b"{" + b'"a":{' * 5000 + b"\n"]))
    yield Lie("a byte a second", drips=True)
    yield Lie("silence after the greeting", _only("ready", "need", "working"), stands="limits.start_s")
    yield Lie("heartbeats without work", _claims_what_it_swallows, _swallows_leases, stands="limits.lease_s")
    yield Lie("each ticket fails at once", hear=_fails_all)
    yield Lie("fifty episodes for one lease", _twice)
    yield Lie("episodes and failures of others' tickets", now_and_then=_for_others)
    more = [[0, number, "train"] for number in range(2000)]
    yield Lie("it claims two thousand tickets", changed("heartbeat", _set("held", to=more)))
    took_up = changed("working", _set("held", to=more))
    yield Lie("it took up all tickets", took_up, is_bounded=True)  # of former hosts, which may have leased that many
    yield Lie("ten thousand slots", changed("working", _set("slots", to=10_000)))
    yield Lie("ten thousand in service", changed("heartbeat", _set("in_service", to=10_000)))
    yield Lie("it knows orders to come", changed("heartbeat", _set("order", to=2**53)))
    yield Lie("it is stuck since ever", changed("heartbeat", _set("for_s", to=1e9)))
    yield Lie("it has never heard the host", changed("heartbeat", _set("unheard_s", to=1e9)))
    yield Lie("another version of the package", changed("ready", _set("package", to="another")))
    yield Lie("it needs what is not there", changed("need", _set("digests", to=["0" * 32])))
    yield Lie("it has loaded what is to come", changed("loaded", _set("version", to=10**9)))
    yield Lie("its slots spent years", changed("slot_seconds", _set("seconds", to={"step": 1e9})), is_bounded=True)
    yield Lie("its slots did what there is not", changed("slot_seconds", _set("seconds", to={"lying": 1.0})))
    yield Lie("seconds that nobody asked for", now_and_then=lambda _: iter([line(_SECONDS)]))
    broken = line({"type": "broken", "during": "disk", "reason": "No space left on device"})
    yield Lie("its disk is always full", now_and_then=lambda _: iter([broken]), is_bounded=True)  # as it may be


_SECONDS = {"type": "slot_seconds", "seconds": {"step": 1.0}}


def of_files() -> Iterator[Lie]:
    """Yields what a file server may send in place of an episode."""

    def flipped(answer: Message, body: Iterator[bytes]) -> Lines:
        yield line(answer)
        yield from (bytes([part[0] ^ 1]) + part[1:] for part in body)

    def endless(answer: Message, _: Iterator[bytes]) -> Lines:
        yield line({**answer, "size": 10**10})
        while True:
            yield bytes(1 << 20)

    def silent(answer: Message, _: Iterator[bytes]) -> Lines:
        yield line(answer)
        time.sleep(600)

    def dripping(answer: Message, body: Iterator[bytes]) -> Lines:
        yield line(answer)
        for part in body:
            for byte in part:
                time.sleep(0.5)
                yield bytes([byte])

    def always(*said: Any) -> Callable[[Message, Iterator[bytes]], Lines]:
        return lambda answer, body: (one if isinstance(one, bytes) else line(one) for one in said)

    yield Lie("a file with a flipped bit", send=flipped)
    yield Lie("a file without end", send=endless)
    yield Lie("a file that stops", send=silent)
    yield Lie("a file by drops", send=dripping)
    yield Lie("a file that is always refused", send=always({"error": "no" * 100_000}))
    yield Lie("an answer without end", send=always(*[b"[" * (1 << 20)] * 64))
    yield Lie("an answer of another shape", send=always(["size"]))
    yield Lie("an answer with a huge number", send=always({"size": HUGE}))
    yield Lie("an empty file", send=always({"size": 0}))


LIES = {lie.name: lie for lie in (*of_fields(), *of_manifests(), *of_behaviour(), *of_files())}
