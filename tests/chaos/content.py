"""Lies of valid content: messages and files that every type allows, at the limits of what they can hold.

``CONTENT`` has them by name. Lengths follow from the message types: a limit that a type gets is the limit here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_type_hints

import msgspec
import numpy as np

from chaos.lies import Lie, Lines, Message, State, changed, line
from chaos.rows import Rows, black, noise, with_private_chunk
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    EpisodeFailed,
    EpisodeManifest,
    Heartbeat,
    MachineFacts,
    Need,
    SlotChanged,
    UnknownFile,
    Word,
    Working,
)
from digirl_dist.storage.digest import file_digest

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
HEIGHT, WIDTH = 2400, 1080
"""The screens of the emulator in ``lab.py``."""
_FULL_LINE = MOST_BYTES - (MOST_BYTES >> 3)
_EVERY_S = 1 / 19
"""Between messages: as often as ``fleet/conduct.py`` allows for ever."""
_LATE_S = 9.0
"""How long an episode is kept back: a lease of the run lasts 12 s."""
_SLOW_BYTES_PER_S = 20_000
"""Just above ``ssh.slowest_kb_s``."""
_CONNECTED_S = 1.0
_BLANKS = b'"BLANKS": 0, '
"""Stands for blanks between the fields of a message."""


def longest(kind: type, name: str, size: int = 1) -> int:
    """Returns how many items of ``size`` bytes a field takes: as many as its type allows, or as fit into a line."""
    return min(_FULL_LINE // size, _most(get_type_hints(kind, include_extras=True)[name]))


def _most(kind: Any) -> int:
    """Returns how many items a message type allows."""
    limit = getattr(msgspec.inspect.type_info(kind), "max_length", None)
    return _FULL_LINE if limit is None else limit


_WORD = _most(Word)
"""Characters of the longest word."""


def _reason(kind: type) -> str:
    return "r" * longest(kind, "reason")


def _again(name: str, make: Callable[[State], Message | None]) -> Lie:
    """Says the same message again and again, made once for each connection, as soon as it can be made."""

    def say(state: State) -> Lines:
        if not state.said and (message := make(state)) is not None:
            state.said = line(message).replace(_BLANKS, b" " * _FULL_LINE)
        if state.said:
            yield state.said.replace(b"NUMBER", str(time.monotonic_ns()).encode())

    return Lie(name, now_and_then=say, every_s=_EVERY_S, is_bounded=True)


def _ended(state: State) -> list[Any] | None:
    """Returns the key of a ticket that the worker has ended."""
    ready = state.last.get("episode_ready")
    return None if ready is None else ready["manifest"]["key"]


def _beat(more: Callable[[list[Any]], Message]) -> Callable[[State], Message | None]:
    """Makes a heartbeat that has ``more`` than the newest one, once a ticket has ended."""

    def make(state: State) -> Message | None:
        key, beat = _ended(state), state.last.get("heartbeat")
        return None if key is None or beat is None else {**beat, **more(key)}

    return make


def _failed_again(state: State) -> Message | None:
    key = _ended(state)
    return None if key is None else {"type": "episode_failed", "slot": 0, "key": key, "reason": _reason(EpisodeFailed)}


def _landed_again(state: State) -> Message | None:
    """Announces an episode of a ticket that has ended, with the longest account of its seconds."""
    ready = state.last.get("episode_ready")
    if ready is None:
        return None
    spent = {f"{number:0{_WORD}d}": 0.0 for number in range(longest(EpisodeManifest, "spent", _WORD + 9))}
    return {**ready, "manifest": {**ready["manifest"], "episode_id": "again-NUMBER", "spent": spent}}


def _one_tensor(state: State) -> Message | None:
    announced = state.last.get("load_policy")
    if not announced or not announced["tensors"]:
        return None
    digest = next(iter(announced["tensors"].values()))[0]
    return {"type": "need", "what": "policy", "digests": [digest] * longest(Need, "digests", len(digest) + 4)}


def _old_version(state: State) -> Message | None:
    loaded = state.last.get("loaded")
    return loaded and {"BLANKS": 0, **loaded}


def of_messages() -> Iterator[Lie]:
    """Yields messages as long, and as many, as a program may send for ever."""
    many = longest(Heartbeat, "held", 22)
    holds_one, has_more = _beat(lambda key: {"held": [key] * many}), _beat(lambda _: {"more": "x" * _FULL_LINE})
    yield _again("heartbeats that hold an ended ticket many times", holds_one)
    yield _again("heartbeats with a megabyte that no field has", has_more)
    yield _again("ended episodes with the longest accounts", _landed_again)
    unknown = {"type": "unknown_file", "episode": "stray-NUMBER", "reason": _reason(UnknownFile)}
    yield _again("unknown files with the longest reasons", lambda _: unknown)
    yield _again("ended tickets fail, for the longest reasons", _failed_again)
    slot = {"type": "slot_changed", "slot": 0, "state": "down", "reason": _reason(SlotChanged), "in_service": 1}
    yield _again("a slot goes down, for the longest reasons", lambda _: slot)
    yield _again("a slot is long again and again", lambda _: {**slot, "state": "long", "reason": "", "in_service": 2})
    yield Lie("a slot comes and goes", now_and_then=partial(_flaps, slot), every_s=2 * _EVERY_S, is_bounded=True)
    yield _again("it lacks one tensor many times", _one_tensor)
    yield _again("an old version is loaded, in lines of blanks", _old_version)


def _flaps(slot: Message, _: State) -> Lines:
    yield line({**slot, "reason": ""})
    yield line({**slot, "state": "ready", "reason": "", "in_service": 2})


def hang_up(_: State) -> Lines:
    """Ends the liar, and so the connection."""
    os._exit(0)


def _flapping(name: str, say: Callable[[Message, State], Lines]) -> Lie:
    """Ends each connection soon after it has begun."""
    return Lie(name, say, now_and_then=hang_up, every_s=_CONNECTED_S, is_bounded=True)


def _set_machine(ready: Message, _: State) -> None:
    most = longest(MachineFacts, "packages", 2 * _WORD + 12)
    packages = {f"{number:0{_WORD}d}": "w" * _WORD for number in range(most)}
    texts = {name: "w" * longest(MachineFacts, name) for name in ("cpu", "system", "python")}
    ready["machine"] = {"cores": 2**53, "memory_bytes": 2**53, **texts, "packages": packages}


def _took_up(working: Message, state: State) -> None:
    working["held"] = [[0, 0, "train"]] * longest(Working, "held", 22)


def of_connections() -> Iterator[Lie]:
    """Yields what a program may say whenever it connects, by one that connects all the time."""
    yield _flapping("connections of a second, by the longest machine", changed("ready", _set_machine))
    slots = changed("working", lambda working, _: working.update(reason=_reason(Working)))
    yield _flapping("connections of a second, with the longest reasons for the slots", slots)
    broken = line({"type": "broken", "during": "disk", "reason": "r" * longest(UnknownFile, "reason")})
    yield Lie("its disk is full, for the longest reasons", now_and_then=lambda _: iter([broken]), is_bounded=True)
    yield Lie("it took up one ticket many times", changed("working", _took_up), is_bounded=True)


def _keeps_back(message: Message, state: State) -> Lines:
    if message["type"] == "episode_ready":
        state.later.append((time.monotonic() + _LATE_S, message))
        return
    if message["type"] == "heartbeat":
        message["held"] += [late["manifest"]["key"] for _, late in state.later]
    yield line(message)


def _brings_late(state: State) -> Lines:
    while state.later and time.monotonic() > state.later[0][0]:
        yield line(state.later.pop(0)[1])


def _eight_times(message: Message, _: State) -> Lines:
    yield from [line(message)] * (8 if message["type"] == "episode_ready" else 1)


def _at_once(message: Message, state: State) -> Lines | None:
    """Answers a lease with an episode of one step for each ticket, made of the first one that the program ran."""
    first = state.last.get("episode_ready")
    if message["type"] != "lease" or first is None or state.folder is None:
        return None
    return (line(_made(ticket, first, state)) for ticket in message["tickets"])


def _made(ticket: Message, first: Message, state: State) -> Message:
    assert state.folder is not None
    if not state.said:
        state.said = state.folder.episode(first["manifest"]["episode_id"]).read_bytes()
    name = f"made-{time.monotonic_ns()}"
    path = state.folder.episode(name)
    path.write_bytes(state.said)
    rows = Rows.read(path)
    purpose = ticket.get("purpose", "train")
    rows.origin[:8] = [ticket["iteration"], ticket["index"], purpose, *rows.origin[3:5], *_of_policy(ticket), name]
    rows.stretch(1)
    rows.write(path)
    about = {"key": [ticket["iteration"], ticket["index"], purpose], "attempt": ticket.get("attempt", 0)}
    about |= {
        "policy_version": ticket["policy_version"],
        "episode_id": name,
        "seconds": 0.05,
        "age_s": 0.0,
        "spent": {},
    }
    time.sleep(0.1)  # a quick emulator
    return {
        **first,
        "manifest": {**first["manifest"], **about, "size": path.stat().st_size, "digest": file_digest(path)},
    }


def _of_policy(ticket: Message) -> list[int]:
    return [ticket["seed"], ticket["policy_version"]]


def of_work() -> Iterator[Lie]:
    """Yields work that is as slow, as quick, or as often announced as an honest worker's may be."""
    yield Lie("each episode comes just in time", _keeps_back, now_and_then=_brings_late, is_bounded=True)
    yield Lie("each line takes two seconds", line_s=2.0, is_bounded=True)
    yield Lie("each episode is announced eight times", _eight_times, is_bounded=True)
    yield Lie("episodes of one step, at once", hear=_at_once, is_bounded=True)
    yield Lie("a megabyte as slow as may be", send=_slowly, forge=partial(_text, 1_000_000, _random), is_bounded=True)


def _slowly(answer: Message, body: Iterator[bytes]) -> Lines:
    yield line(answer)
    for part in body:
        for start in range(0, len(part), _SLOW_BYTES_PER_S // 4):
            yield part[start : start + _SLOW_BYTES_PER_S // 4]
            time.sleep(0.25)


def _of_steps(place: int, *values: float) -> Callable[[Rows, float], None]:
    def forge(rows: Rows, _: float) -> None:
        for number, step in enumerate(rows.steps):
            step[place] = values[number % len(values)]

    return forge


def _vectors(*values: float) -> Callable[[Rows, float], None]:
    def forge(rows: Rows, _: float) -> None:
        for seen in rows.seen:
            count = len(seen[Rows.VECTOR] or b"") // 4
            seen[Rows.VECTOR] = np.resize(np.array(values, "<f4"), count).tobytes()

    return forge


def _random(count: int) -> str:
    return np.random.default_rng(0).bytes(count // 2).hex()


def _letters(count: int) -> str:
    return "\N{GRINNING FACE}" + "a" * count


def _text(count: int, make: Callable[[int], str], rows: Rows, share: float) -> None:
    rows.seen[0][Rows.TEXT] = make(int(count * share))


def _texts(count: int, make: Callable[[int], str], rows: Rows, share: float) -> None:
    for number, seen in enumerate(rows.seen):
        seen[Rows.TEXT] = f"{number} {make(int(count * share))}"


def _blanks(rows: Rows, share: float) -> None:
    rows.steps[0][Rows.ACTION] += " " * int(15_000_000 * share)
    rows.origin[Rows.PARAMS] += " " * int(15_000_000 * share)


def _goals(rows: Rows, share: float) -> None:
    for step in rows.steps:
        step[Rows.ACHIEVED] = f'[{{"goal":"{"g" * int(60_000 * share)}"}}]'


def _steps(rows: Rows, share: float) -> None:
    rows.stretch(max(1, int(10_000 * share)))


def _shows(count: int, make: Callable[[int], Iterator[bytes]], rows: Rows, share: float) -> None:
    shown = max(2, int(count * share))
    rows.stretch(shown - 1)
    rows.show(list(make(shown)))


def _shows_one(rows: Rows, share: float) -> None:
    rows.stretch(max(1, int(3_000 * share)))
    rows.show(list(black(HEIGHT, WIDTH, 1)))


def _hides_chunk(height: int, width: int, rows: Rows, share: float) -> None:
    rows.show([with_private_chunk(next(black(height, width, 1)), int(100_000_000 * share))])


def _tiny(rows: Rows, share: float) -> None:
    for forge in (_of_steps(Rows.REWARD, SMALLEST), _of_steps(Rows.LOG_PROB, -SMALLEST), _vectors(SMALLEST, -SMALLEST)):
        forge(rows, share)


def of_numbers() -> Iterator[Lie]:
    """Yields extreme finite numbers."""
    log_prob, reward = Rows.LOG_PROB, Rows.REWARD
    yield Lie("rewards of the largest float32", forge=_of_steps(reward, LARGEST))
    yield Lie("rewards of both signs at their limits", forge=_of_steps(reward, -LARGEST, LARGEST))
    yield Lie("log-probabilities of the smallest float32", forge=_of_steps(log_prob, -LARGEST))
    yield Lie("vectors at the limits of float32", forge=_vectors(LARGEST, -LARGEST))
    yield Lie("denormal numbers everywhere", forge=_tiny, is_bounded=True)


def of_texts() -> Iterator[Lie]:
    """Yields long texts, in every place that has room for one."""
    heavy: dict[str, Any] = {"is_bounded": True, "is_heavy": True}
    yield Lie("an emoji and 33 million letters", forge=partial(_text, 33_000_000, _letters), is_bounded=True)
    yield Lie("four million random letters in each text", forge=partial(_texts, 4_000_000, _random), **heavy)
    yield Lie("a text where the emulator has none", forge=partial(_texts, 1_000, _random), is_bounded=True)
    yield Lie("thirty million blanks behind an action and params", forge=_blanks, is_bounded=True)
    yield Lie("goals as long as goals may be", forge=_goals, is_bounded=True)
    yield Lie("ten thousand steps", forge=_steps, is_bounded=True)


def of_pictures() -> Iterator[Lie]:
    """Yields screens: many, large, and where there are none."""
    heavy: dict[str, Any] = {"is_bounded": True, "is_heavy": True}
    yield Lie("a picture where there is none, with 100 MB beside it", forge=partial(_hides_chunk, 8, 8), **heavy)
    yield Lie(
        "the largest pictures where there are none", forge=partial(_shows, 200, partial(black, 4096, 4096)), **heavy
    )
    heavy["screens"] = True
    screens = partial(black, HEIGHT, WIDTH)
    yield Lie("ten thousand black screens", forge=partial(_shows, 10_000, screens), **heavy)
    yield Lie("screens that nothing compresses", forge=partial(_shows, 24, partial(noise, HEIGHT, WIDTH)), **heavy)
    yield Lie("one screen for three thousand steps", forge=_shows_one, **heavy)
    yield Lie("a screen with 100 MB beside it", forge=partial(_hides_chunk, HEIGHT, WIDTH), **heavy)


_KINDS = (of_numbers, of_texts, of_pictures, of_messages, of_connections, of_work)
CONTENT = {lie.name: lie for kind in _KINDS for lie in kind()}
