"""What agents that answer in tokens share: sampling row by row, and exact log-probabilities of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from digirl_dist.agent.sampling import draw


class NextLogits(Protocol):
    """A model in the middle of B answers; it remembers what it was told."""

    def __call__(self, chosen: torch.Tensor | None) -> torch.Tensor:
        """Logits [B, V] of the next token, after the tokens [B] that were chosen last (None: at the beginning)."""


@dataclass(frozen=True)
class SamplingParams:
    """How answers are drawn: until one of the tokens ``ends``, at most ``length`` tokens, at a temperature > 0."""

    ends: frozenset[int]
    length: int
    temperature: float = 1.0
    barred: tuple[int, ...] = ()
    """Tokens that are never said."""

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Of every token of the vocabulary, from logits [..., V]."""
        tempered = logits.float() / self.temperature
        if self.barred:
            tempered = tempered.index_fill(-1, torch.tensor(self.barred, device=logits.device), float("-inf"))
        return tempered.log_softmax(dim=-1)


@dataclass(frozen=True)
class Answer:
    """Tokens, the one that ended it included, and the natural log of their probability."""

    tokens: list[int]
    log_prob: float


def sample(next_logits: NextLogits, rngs: Sequence[np.random.Generator], sampling: SamplingParams) -> list[Answer]:
    """B answers, row i with randomness from ``rngs[i]`` alone: one number for each of its tokens."""
    answers: list[list[int]] = [[] for _ in rngs]
    sums = [0.0] * len(rngs)
    speaking = list(range(len(rngs)))
    chosen: torch.Tensor | None = None
    for _ in range(sampling.length):
        logits = next_logits(chosen)
        log_probs = sampling.log_probs(logits).double().cpu().numpy()
        for row in speaking:
            token = draw(log_probs[row], rngs[row])
            answers[row].append(token)
            sums[row] += float(log_probs[row, token])
        speaking = [row for row in speaking if answers[row][-1] not in sampling.ends]
        if not speaking:
            break
        chosen = torch.tensor([answer[-1] for answer in answers], device=logits.device)
    return [Answer(tokens, total) for tokens, total in zip(answers, sums, strict=True)]


def padded(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """B rows of tokens as one tensor [B, T], filled up on the right, and the mask [B, T] of what is theirs."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=torch.long)
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], dtype=torch.bool)
    return tokens.reshape(len(rows), width), mask.reshape(len(rows), width)


def log_probs_of_answers(
    logits: torch.Tensor, answers: Sequence[Sequence[int]], sampling: SamplingParams
) -> torch.Tensor:
    """Natural log of each answer's probability, shape [B]; ``logits`` [B, T, V] are those from which it was chosen."""
    tokens, mask = (part.to(logits.device) for part in padded(answers))
    of_tokens = sampling.log_probs(logits).gather(2, tokens[:, :, None])[:, :, 0]
    return of_tokens.masked_fill(~mask, 0.0).sum(dim=1)
