"""The delta of a bfloat16 policy after a step of Adam: size against the entropy of the change, speed of the codec.

A language model learns by policy gradients which sequences of words are rewarded. Adam has made some steps before the
one that is measured, as it has in all updates of a run but the first. That one, in which Adam moves every weight by the
whole learning rate however noisy its gradient, is in the details.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import show
from digirl_dist.protocol import tensor_delta
from digirl_dist.storage.checkpoint import State, raw_bytes

LAYERS, WIDTH, WORDS = sized((12, 768, 32_768), (2, 64, 256))
BATCH, LENGTH = sized((8, 32), (2, 16))
STEPS = sized(20, 3)
LEARNING_RATE = 3e-6
T = TypeVar("T")


class LanguageModel(nn.Module):
    """A transformer with the initial weights of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        sizes = WIDTH, WIDTH // 64, 4 * WIDTH, 0.0
        layer = nn.TransformerEncoderLayer(*sizes, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, 0.02)

    def log_prob(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the mean log-probability of each sequence's words."""
        length = words.shape[1] - 1
        seen = self.words(words[:, :-1]) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits = self.layers(seen, mask=mask, is_causal=True) @ self.words.weight.T
        return -cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none").mean(-1)


@dataclass
class Measured:
    """The deltas of one step, all tensors together."""

    numbers: int = 0
    changed: int = 0
    plain: int = 0
    delta: int = 0
    entropy: float = 0.0
    """Bytes; see ``_entropy``."""
    encode_s: float = 0.0
    decode_s: float = 0.0

    def add(self, new: memoryview, base: memoryview, width: int) -> None:
        """Raises AssertionError if what is decoded is not, to the bit, what was encoded."""
        delta, encode_s = _timed(lambda: tensor_delta.encode(new, base, width))
        decoded, decode_s = _timed(lambda: list(tensor_delta.decode(_reader(delta), _reader(base), len(new), width)))
        assert b"".join(decoded) == new
        changed, entropy = _entropy(*(np.frombuffer(each, f"u{width}") for each in (new, base)))
        added = (len(new) // width, changed, len(new), len(delta), entropy, encode_s, decode_s)
        self.__init__(*(one + more for one, more in zip(astuple(self), added, strict=True)))  # type: ignore[misc]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = LanguageModel()
    steps = _steps(policy)
    cold = _measured(steps)
    with waiting_for(f"{STEPS} steps of Adam"):
        for _ in range(STEPS - 2):
            next(steps)
    warm = _measured(steps)
    values = {
        "bytes_ratio": (warm.delta / warm.plain, "<=0.02"),
        "vs_entropy": (warm.delta / warm.entropy, "<=1.2"),
        "encode_mb_s": (warm.plain / warm.encode_s / 1e6, ">=500"),
        "decode_mb_s": (warm.plain / warm.decode_s / 1e6, ">=500"),
    }
    detail = {
        "parameters": warm.numbers,
        "changed_share": round(warm.changed / warm.numbers, 5),
        "first_step_ratio": round(cold.delta / cold.plain, 4),
        "first_step_changed_share": round(cold.changed / cold.numbers, 5),
        "first_step_vs_entropy": round(cold.delta / cold.entropy, 4),
        "note": "a step of Adam under way, at 3e-6; seconds of one core; every tensor came back bit-identical",
    }
    show("delta", values, detail)


def _steps(policy: LanguageModel) -> Iterator[tuple[State, State]]:
    """Yields the weights as they travel, before and after each step."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    after = _on_wire(policy)
    while True:
        words = torch.randint(WORDS, (BATCH, LENGTH))  # what the initial policy says
        reward = (words % 2 == 0).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        optimizer.zero_grad()
        (-advantage * policy.log_prob(words)).mean().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        before, after = after, _on_wire(policy)
        yield before, after


def _on_wire(policy: nn.Module) -> State:
    return {name: tensor.detach().bfloat16() for name, tensor in policy.named_parameters()}


def _measured(steps: Iterator[tuple[State, State]]) -> Measured:
    before, after = next(steps)
    measured = Measured()
    with waiting_for(f"the deltas of {len(after)} tensors"):
        for name, tensor in after.items():
            measured.add(raw_bytes(tensor), raw_bytes(before[name]), tensor.itemsize)
    return measured


def _entropy(new: np.ndarray, base: np.ndarray) -> tuple[int, float]:
    """Returns the number of changes, and the bytes that an ideal code of order zero needs for them.

    Each number of the tensor changes with the same probability, and each change is drawn from the tensor's own changes.
    """
    changes = (new - base)[new != base]
    if not len(changes):
        return 0, 0.0
    of_changes = np.unique(changes, return_counts=True)[1]
    bits = _bits(np.array([len(changes), len(new) - len(changes)])) + _bits(of_changes)
    return len(changes), bits / 8


def _bits(counts: np.ndarray) -> float:
    """Returns the entropy of all draws together."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def _timed(make: Callable[[], T]) -> tuple[T, float]:
    started = time.thread_time()
    return make(), time.thread_time() - started


def _reader(data: bytes | memoryview) -> tensor_delta.Read:
    view, at = memoryview(data), 0

    def read(count: int) -> memoryview:
        nonlocal at
        at += count
        return view[at - count : at]

    return read


if __name__ == "__main__":
    measure(main, minutes=15)
