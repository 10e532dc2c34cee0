"""Deltas bring back the very bytes, need little more than the entropy of the change, and refuse what is none."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from digirl_dist.protocol import tensor_delta
from digirl_dist.storage.checkpoint import raw_bytes

Numbers = NDArray[np.uint16]
DRAW = np.random.default_rng(0)
NUMBERS = 200_000


def decoded(delta: bytes, base: memoryview | bytes, size: int, width: int) -> bytes:
    return b"".join(tensor_delta.decode(io.BytesIO(delta).read, io.BytesIO(base).read, size, width))


def some(share: float) -> Callable[[Numbers], Numbers]:
    """Moves so many of the numbers by one unit."""

    def change(base: Numbers) -> Numbers:
        moved = base + np.where(DRAW.random(len(base)) < 0.5, 1, -1).astype(np.uint16)
        changed: Numbers = np.where(DRAW.random(len(base)) < share, moved, base)
        return changed

    return change


def rows(base: Numbers) -> Numbers:
    """Draws a few neighbours anew, as rows of an embedding."""
    new = base.copy()
    new[70_000:71_000] = DRAW.integers(1 << 16, size=1000)
    return new


CHANGES: dict[str, Callable[[Numbers], Numbers]] = {
    "nothing": lambda base: base.copy(),
    "the first": lambda base: np.concatenate([base[:1] + 1, base[1:]]),
    "the last": lambda base: np.concatenate([base[:-1], base[-1:] - 1]),
    "a few": some(0.001),
    "many": some(0.3),
    "most": some(0.9),
    "neighbours": rows,
    "by half the range": lambda base: base + np.uint16(1 << 15),
    "everything": lambda base: DRAW.integers(1 << 16, size=len(base), dtype=np.uint16),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_the_very_bytes_come_back_whatever_changed(change: str, width: int) -> None:
    base = DRAW.integers(1 << 16, size=NUMBERS, dtype=np.uint16)
    new = CHANGES[change](base).astype(np.uint16)
    delta = tensor_delta.encode(memoryview(new.tobytes()), memoryview(base.tobytes()), width)
    assert decoded(delta, base.tobytes(), new.nbytes, width) == new.tobytes()
    assert len(delta) <= new.nbytes + 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("numbers", [0, 1, 3, 1000, tensor_delta.BLOCK // 2 + 5])
def test_tensors_of_every_kind_and_length_come_back(dtype: torch.dtype, numbers: int) -> None:
    old = (torch.randn(numbers) * 50).to(dtype)
    new = (old.double() * 1.01).to(dtype)
    delta = tensor_delta.encode(raw_bytes(new), raw_bytes(old), dtype.itemsize)
    assert decoded(delta, raw_bytes(old), new.nbytes, dtype.itemsize) == bytes(raw_bytes(new))


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.2, 0.5, 0.7])
def test_a_delta_needs_little_more_than_the_entropy_of_the_change(share: float) -> None:
    base = DRAW.integers(1 << 16, size=1_000_000, dtype=np.uint16)
    changed = some(share)(base)
    delta = tensor_delta.encode(memoryview(changed.tobytes()), memoryview(base.tobytes()), 2)
    share = float(np.mean(changed != base))  # of a thousandth, 3 % more or less were drawn
    of_places = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    assert len(delta) <= 1.1 * len(base) * (of_places + share) / 8  # a changed number tells one bit: up or down


def test_one_step_of_adam_in_bfloat16_takes_a_tenth_of_the_bytes() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(1_000_000) * 0.02)
    before = weight.detach().bfloat16()
    weight.grad = torch.randn_like(weight)
    torch.optim.Adam([weight], lr=1e-5).step()
    after = weight.detach().bfloat16()
    assert not torch.equal(before, after)
    assert len(tensor_delta.encode(raw_bytes(after), raw_bytes(before), 2)) <= 0.1 * after.nbytes


def altered(delta: bytes) -> Iterator[bytes]:
    yield b""
    yield delta[: len(delta) // 2]
    for kind, low_bits, count, unary_bits in (
        (4, 0, 0, 0),
        (1, 23, 10, 10),
        (1, 0, 1 << 31, 1 << 31),
        (1, 22, 10, (1 << 32) - 1),
        (1, 0, 10, 11),
        (2, 0, 0, 0),
        (3, 0, 0, 0),
    ):
        yield struct.pack(">BBII", kind, low_bits, count, unary_bits) + delta[10:]
    yield delta[:10] + b"\xff" * 4 + delta[14:]
    yield delta[:14] + bytes(len(delta) - 14)


def test_a_damaged_delta_is_refused_and_takes_no_memory() -> None:
    base = DRAW.integers(1 << 16, size=NUMBERS, dtype=np.uint16)
    delta = tensor_delta.encode(memoryview(some(0.01)(base).tobytes()), memoryview(base.tobytes()), 2)
    tracemalloc.start()
    try:
        for data in altered(delta):
            with pytest.raises(ValueError, match=r"delta|block|frame|row|change"):
                decoded(data, base.tobytes(), base.nbytes, 2)
        assert tracemalloc.get_traced_memory()[1] < 10 * base.nbytes
    finally:
        tracemalloc.stop()


def test_a_base_of_another_length_and_unknown_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="the base has 3"):
        decoded(b"", b"abc", 4, 2)
    with pytest.raises(ValueError, match="no numbers are 3 bytes wide"):
        decoded(b"", b"abc", 3, 3)
