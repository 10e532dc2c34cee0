"""An episode survives its way from a worker, and what is none costs the host little."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import episode_file, parquet
from digirl_dist.trajectory import Observation, Trajectory
from tests.storage.test_parquet import episode

MOST_STEPS = 1000
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


def on_disk(path: Path, content: bytes) -> Path:
    path.write_bytes(xxhash.xxh3_128_digest(content) + content)
    return path


def file_of(rows: Any, images: Any = ()) -> bytes:
    return _encode([zlib.compress(rows if isinstance(rows, bytes) else _encode(rows)), images])


def parts() -> tuple[list[Any], list[bytes]]:
    """What the file of an episode is made of: origin, steps and observations; and images."""
    rows, images = _decode(episode_file.encode(episode())[16:])
    return _decode(zlib.decompress(rows)), images


def changed(*place: int, to: Any) -> bytes:
    rows, images = parts()
    inside = rows
    for number in place[:-1]:
        inside = inside[number]
    inside[place[-1]] = to
    return file_of(rows, images)


def test_an_episode_reads_back_as_parquet_has_it(tmp_path: Path) -> None:
    first, second, *more = episode().steps
    third = replace(first, reward=1 / 3, log_prob=-1 / 3)
    spoken = replace(second, action={"tokens": [5, 9]}, token_log_probs=[-1 / 3, -2.5])
    written = replace(episode(), steps=[third, spoken, *more])
    episode_file.write(tmp_path / "e.episode", written)
    parquet.write(tmp_path / "e.parquet", [written])
    [stored] = parquet.read(tmp_path / "e.parquet")
    assert told(episode_file.read(tmp_path / "e.episode")) == told(stored)
    assert [list(step.token_log_probs) for step in stored.steps] == [[], [np.float32(-1 / 3), -2.5], []]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def told(one: Trajectory) -> Any:
    def seen(what: Observation) -> Any:
        vector = None if what.vector is None else (what.vector.dtype, what.vector.tolist(), what.vector.flags.writeable)
        return what.text, what.image, vector

    steps = [
        (seen(s.observation), s.action, s.log_prob, s.token_log_probs, s.reward, s.terminated, s.truncated, s.achieved)
        for s in one.steps
    ]
    return one.ticket, one.episode_id, one.worker, one.slot, steps, seen(one.final_observation), one.success


def test_long_texts_are_packed_and_images_are_as_they_were() -> None:
    seen = Observation("a long text " * 1000, b"\x89PNG" * 5000)
    long = replace(episode(), steps=[replace(step, observation=seen) for step in episode().steps])
    content = episode_file.encode(long)
    assert len(content) < 20_000 + 2000 and content.count(b"\x89PNG" * 5000) == 1


@pytest.mark.component
def test_an_image_that_is_shown_again_and_again_is_stored_again_before_a_reader_refuses_it(tmp_path: Path) -> None:
    """In Parquet each step has its own copy, so a few bytes must not stand for many."""
    seen = Observation("", bytes(9 << 20))
    still = replace(episode(), steps=[replace(step, observation=seen) for step in episode(steps=9).steps])
    episode_file.write(tmp_path / "e.episode", still)
    assert (tmp_path / "e.episode").stat().st_size > 6 * 9 << 20
    assert len(episode_file.read(tmp_path / "e.episode").steps) == 9
    rows, _ = parts()
    bomb = [rows[0], rows[1][-1:] * 9, [[0, None, 0]] * 10, [b""]]
    with pytest.raises(TrajectoryError, match="its images would unpack to more"):
        episode_file.read(on_disk(tmp_path / "b.episode", file_of(bomb, [bytes(9 << 20)])))


@pytest.mark.parametrize("place", [0, 20, 200, -1])
def test_a_byte_that_changed_is_noticed(tmp_path: Path, place: int) -> None:
    data = bytearray(episode_file.encode(episode()))
    data[place] ^= 1
    (tmp_path / "e.episode").write_bytes(data)
    with pytest.raises(TrajectoryError, match=r"e\.episode is not a trajectory file: it was altered or cut off"):
        episode_file.read(tmp_path / "e.episode")


def list_of(count: int) -> bytes:
    """The head of a list in MessagePack, which promises so much."""
    return b"\xdd" + struct.pack(">I", count)


ORIGIN = _encode(parts()[0][0])
FOREIGN: dict[str, Callable[[], bytes]] = {
    "nothing": bytes,
    "no list": lambda: _encode("x"),
    "more than a file": lambda: _encode([b"", []]) + b"x",
    "rows that are not packed": lambda: _encode([_encode(parts()[0]), parts()[1]]),
    "rows that are cut off": lambda: _encode([zlib.compress(_encode(parts()[0]))[:-9], parts()[1]]),
    "zeros that zlib shrinks": lambda: file_of(bytes(200 << 20)),
    "a list that promises much": lambda: file_of(b"\x93" + ORIGIN + list_of(2**32 - 1)),
    "many steps": lambda: file_of(b"\x93" + ORIGIN + _encode([parts()[0][1][0]] * 300_000) + _encode([])),
    "many observations": lambda: file_of([parts()[0][0], parts()[0][1], [[0, None, None]] * 900_000, [b""]]),
    "no steps": lambda: file_of([parts()[0][0], [], parts()[0][2][:1], parts()[0][3][:1]], parts()[1][:1]),
    "an observation less": lambda: file_of([*parts()[0][:2], parts()[0][2][:-1], parts()[0][3]], parts()[1][:-1]),
    "an image less": lambda: file_of(parts()[0], parts()[1][:-1]),
    "an image more": lambda: file_of(parts()[0], [*parts()[1], b"x"]),
    "half a number in a vector": lambda: changed(2, 0, 1, to=b"abc"),
    "a text that is null": lambda: changed(2, 0, 0, to=None),
    "a text that is not there": lambda: changed(2, 0, 0, to=99),
    "a text that nobody saw": lambda: changed(3, to=[*parts()[0][3], b"x"]),
    "an image that is not there": lambda: changed(2, 0, 2, to=99),
    "a text of one emoji and 33 million letters": lambda: changed(3, 0, to="\U0001f600".encode() + bytes(33 << 20)),
    "texts of one emoji and many letters": lambda: file_of(
        [
            parts()[0][0],
            [parts()[0][1][-1]] * 99,
            [[number, None, None] for number in range(100)],
            ["\U0001f600".encode() + str(number).encode() + b"a" * 100_000 for number in range(100)],
        ]
    ),
    "a long text in many steps": lambda: file_of(
        [parts()[0][0], [parts()[0][1][-1]] * 999, [[0, None, None]] * 1000, [b"a" * 100_000]]
    ),
    "a text that is no Unicode": lambda: file_of(_encode(parts()[0]).replace(b"open it", b"open \xed\xa0"), parts()[1]),
    "an action that is no JSON": lambda: changed(1, 0, 0, to="{"),
    "an action of many small lists": lambda: changed(1, 0, 0, to="[" + "[]," * 5_000_000 + "[]]"),
    "an action of many small objects": lambda: changed(1, 0, 0, to="[" + "{}," * 800_000 + "{}]"),
    "goals of many small objects, in many steps": lambda: file_of(
        [parts()[0][0], [[*parts()[0][1][0][:5], "[{}" + ",{}" * 99_999 + "]"]] * 9, [[0, None, None]] * 10, [b""]]
    ),
    "an action without end": lambda: changed(1, 0, 0, to="[" * 100_000),
    "a reward that is a text": lambda: changed(1, 0, 2, to="1"),
    "goals that are none": lambda: changed(1, 0, 5, to="[1]"),
    "params that are none": lambda: changed(0, 11, to="[1]"),
    "params of many small objects": lambda: changed(0, 11, to='{"a": [' + "{}," * 800_000 + "{}]}"),
    "params without end": lambda: changed(0, 11, to='{"a":' * 100_000),
    "a slot below zero": lambda: changed(0, 9, to=-1),
    "another purpose": lambda: changed(0, 2, to="play"),
}


@pytest.mark.component
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_episode_is_refused_before_it_takes_memory(tmp_path: Path, name: str) -> None:
    path = on_disk(tmp_path / "e.episode", FOREIGN[name]())
    tracemalloc.start()
    try:
        with pytest.raises(TrajectoryError, match=r"e\.episode is not a trajectory file"):
            episode_file.read(path, MOST_STEPS)
        assert tracemalloc.get_traced_memory()[1] <= 40 << 20
    finally:
        tracemalloc.stop()


def texts_of(*texts: str) -> Trajectory:
    steps = [replace(episode().steps[0], observation=Observation(text)) for text in texts]
    return replace(episode(), steps=steps, final_observation=Observation(texts[0]))


def test_a_text_bomb_is_a_fault_of_its_emulator_before_it_is_sent(tmp_path: Path) -> None:
    """One end's limit is the other's: what a worker can write the host can read, whatever it contains."""
    long = "\U0001f600" + "a" * 100_000
    with pytest.raises(TrajectoryError, match="its texts and values unpack to .* bytes; at most .* are allowed"):
        episode_file.encode(texts_of(*(f"{long}{number}" for number in range(50))))
    episode_file.write(tmp_path / "e.episode", texts_of(*(f"{long}{number}" for number in range(9)), *[long] * 200))
    back = episode_file.read(tmp_path / "e.episode")
    assert len({id(step.observation.text) for step in back.steps}) == 10  # each is in memory once


@pytest.mark.component
@pytest.mark.parametrize("text", ["half \ud800", "a" * 99], ids=["half", "whole"])
@pytest.mark.parametrize("action", [1, [[]] * 100_000, [[]] * 900_000, {"a": {}}], ids=["1", "lists", "many", "dict"])
@pytest.mark.parametrize("image", [None, bytes(9 << 20)], ids=["blind", "image"])
def test_whatever_an_encoder_says_a_decoder_accepts(tmp_path: Path, text: str, action: Any, image: bytes) -> None:
    one = replace(episode().steps[0], observation=Observation(text, image), action=action)
    try:
        content = episode_file.encode(replace(episode(), steps=[one] * 9))
    except TrajectoryError:
        return
    (tmp_path / "e.episode").write_bytes(content)
    assert episode_file.read(tmp_path / "e.episode").steps[0].action == action


def test_no_more_steps_are_read_than_an_episode_may_have(tmp_path: Path) -> None:
    episode_file.write(tmp_path / "e.episode", episode(steps=3))
    assert len(episode_file.read(tmp_path / "e.episode", 3).steps) == 3
    with pytest.raises(TrajectoryError, match="length <= 2"):
        episode_file.read(tmp_path / "e.episode", 2)


def test_numbers_beyond_float32_become_infinite_and_are_left_to_the_guard(tmp_path: Path) -> None:
    steps = [replace(step, reward=1e300) for step in episode().steps]
    episode_file.write(tmp_path / "e.episode", replace(episode(), steps=steps))
    assert {step.reward for step in episode_file.read(tmp_path / "e.episode").steps} == {np.inf}
