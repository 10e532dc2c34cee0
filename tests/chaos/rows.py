"""The content of an episode's file as plain lists, in which a liar can write whatever the format has room for."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

_DIGEST_BYTES = 16
_ADLER = 65521
_COLOURS = 3


@dataclass
class Rows:
    """The lists of ``storage/episode_file.py``, with names for the places in them that lies change.

    An observation has its text itself; the file has each text once.
    """

    ACTION, LOG_PROB, REWARD, TERMINATED, TRUNCATED, ACHIEVED = range(6)
    TEXT, VECTOR, IMAGE = range(3)
    PARAMS = 11

    origin: list[Any]
    steps: list[list[Any]]
    seen: list[list[Any]]
    images: list[bytes]

    @classmethod
    def read(cls, path: Path) -> Rows:
        packed, images = msgspec.msgpack.decode(path.read_bytes()[_DIGEST_BYTES:])
        origin, steps, seen, texts = msgspec.msgpack.decode(zlib.decompress(packed))
        for one in seen:
            one[cls.TEXT] = texts[one[cls.TEXT]].decode()
        return cls(origin, steps, seen, images)

    def write(self, path: Path) -> None:
        encode = msgspec.msgpack.encode
        places: dict[str, int] = {}
        seen = [[places.setdefault(text, len(places)), *rest] for text, *rest in self.seen]
        packed = zlib.compress(encode([self.origin, self.steps, seen, [text.encode() for text in places]]), 1)
        content = encode([packed, self.images])
        part = path.with_suffix(".forged")
        with part.open("wb") as file:
            file.write(xxhash.xxh3_128_digest(content))
            file.write(content)
        os.replace(part, path)

    def stretch(self, count: int) -> None:
        """Repeats the first step and observation until there are ``count`` steps, of which the last one ends."""
        first, last = list(self.steps[0]), list(self.steps[-1])
        first[self.TERMINATED] = first[self.TRUNCATED] = False
        self.steps = [list(first) for _ in range(count - 1)] + [last]
        self.seen = [list(self.seen[0]) for _ in range(count)] + [self.seen[-1]]

    def show(self, images: list[bytes]) -> None:
        """Shows one image after the other, the last one for as long as the episode goes on."""
        self.images = images[: len(self.seen)]
        for number, seen in enumerate(self.seen):
            seen[self.IMAGE] = min(number, len(self.images) - 1)


def black(height: int, width: int, count: int) -> Iterator[bytes]:
    """Yields different PNGs of black pixels: 7.6 kB each for 2400 x 1080 pixels, which unpack to 7.8 MB."""
    size = width * _COLOURS
    for number in range(count):
        row = b"\0" + number.to_bytes(4, "big").rjust(size, b"\0")
        stored = b"\0" + struct.pack("<HH", len(row), len(row) ^ 0xFFFF) + row
        checksum = _adler_of_zeros_after(zlib.adler32(row), (height - 1) * (1 + size))
        yield _png(
            height, width, b"\x78\x9c" + stored + _zeros((height - 1) * (1 + size)) + struct.pack(">I", checksum)
        )


def black_png(height: int, width: int) -> bytes:
    """Returns one of black pixels. It needs nothing that cannot travel to workers, as caches cannot."""
    return _png(height, width, zlib.compress(bytes(height * (1 + width * _COLOURS)), 9))


def noise(height: int, width: int, count: int) -> Iterator[bytes]:
    """Yields PNGs that nothing can compress."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        rows = np.zeros((height, 1 + width * _COLOURS), np.uint8)
        rows[:, 1:] = np.frombuffer(rng.bytes(height * width * _COLOURS), np.uint8).reshape(height, -1)
        yield _png(height, width, zlib.compress(rows.tobytes(), 0))


def with_private_chunk(image: bytes, size: int) -> bytes:
    """Returns a PNG with a chunk before its end that every reader skips."""
    end = image.rindex(b"IEND") - 4
    return image[:end] + _chunk(b"prVt", bytes(size)) + image[end:]


def _png(height: int, width: int, packed: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@cache
def _zeros(count: int) -> bytes:
    """Returns so many zeros as a raw stream that ends."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(count)) + packer.flush()


def _adler_of_zeros_after(checksum: int, count: int) -> int:
    """Returns the Adler-32 of what has ``checksum`` with ``count`` zeros behind it, without a look at each of them."""
    low, high = checksum & 0xFFFF, checksum >> 16
    return (high + count * low) % _ADLER << 16 | low
