"""Draws from distributions, row by row, and what agents that answer in tokens share: exact log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from digirl_dist.trajectory import Decision
from digirl_dist.types import Json


def draw(log_probs: np.ndarray, rng: np.random.Generator) -> int:
    """An index drawn with the probabilities exp(``log_probs``), shape [N], by inverting their cumulative sum."""
    edges = np.cumsum(np.exp(log_probs))
    return int(min(np.searchsorted(edges, rng.random() * edges[-1], side="right"), len(edges) - 1))


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
    """Tokens, the one that ended it included, and the natural log of each one's probability."""

    tokens: list[int]
    log_probs: list[float]

    def decision(self, action: Json) -> Decision:
        """Returns the decision for the action that the answer means."""
        return Decision(action, sum(self.log_probs), self.log_probs)


class AnswerSampler:
    """A logits processor of transformers' ``generate``: draws the next token of each of B answers and bars all others.

    Row i takes one number of ``rngs[i]`` for each token. What is left to ``generate`` are caches, positions and masks,
    which differ from model to model.
    """

    def __init__(self, sampling: SamplingParams, rngs: Sequence[np.random.Generator]) -> None:
        self._sampling = sampling
        self._rngs = rngs
        self._tokens: list[list[int]] = [[] for _ in rngs]
        self._log_probs: list[list[float]] = [[] for _ in rngs]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``scores`` are the logits [B, V]; those of the tokens drawn remain."""
        log_probs = self._sampling.log_probs(scores).cpu().double().numpy()  # from a GPU in one piece
        for row in filter(self._speaks, range(len(self._rngs))):
            token = draw(log_probs[row], self._rngs[row])
            self._tokens[row].append(token)
            self._log_probs[row].append(float(log_probs[row, token]))
        last = torch.tensor([tokens[-1] for tokens in self._tokens], device=scores.device)
        return torch.full_like(scores, float("-inf")).scatter(1, last[:, None], 0.0)

    def answers(self) -> list[Answer]:
        return [Answer(tokens, of_tokens) for tokens, of_tokens in zip(self._tokens, self._log_probs, strict=True)]

    def _speaks(self, row: int) -> bool:
        tokens = self._tokens[row]
        return not tokens or (tokens[-1] not in self._sampling.ends and len(tokens) < self._sampling.length)


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """B rows of tokens as one tensor [B, T], filled up with 0 on the right, and the mask [B, T] of what is theirs."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long)
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], dtype=torch.bool)
    return tokens.reshape(len(rows), width), mask.reshape(len(rows), width)


def log_probs_of_answers(
    logits: torch.Tensor, answers: Sequence[Sequence[int]], sampling: SamplingParams
) -> torch.Tensor:
    """Natural log of each token's probability, shape [B, T], 0 beyond an answer's end.

    ``logits`` [B, T, V] are those from which the tokens were chosen.
    """
    tokens, mask = (part.to(logits.device) for part in padded(answers))
    return sampling.log_probs(logits).gather(2, tokens[:, :, None])[:, :, 0].masked_fill(~mask, 0.0)


def joined(parts: Sequence[torch.Tensor], answers: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities [B, T] of all ``answers``, from those of some each, and the mask [B, T] of tokens."""
    _, mask = padded(answers)
    width = mask.shape[1]
    whole = torch.cat([nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])
    return whole, mask.to(whole.device)
