"""Sampling inside transformers' ``generate``, so that each row has randomness of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor

from digirl_dist.agent.sampling import draw
from digirl_dist.agent.tokens import Answer, SamplingParams


class Drawing(LogitsProcessor):  # type: ignore[misc]
    """Draws the next token of each of B answers, row i with one number of ``rngs[i]``, and bars all others.

    What is left to ``generate`` are caches, positions and masks, which differ from model to model.
    """

    def __init__(self, sampling: SamplingParams, rngs: Sequence[np.random.Generator]) -> None:
        self._sampling = sampling
        self._rngs = rngs
        self._tokens: list[list[int]] = [[] for _ in rngs]
        self._sums = [0.0] * len(rngs)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``scores`` are the logits [B, V]; those of the tokens drawn remain."""
        log_probs = self._sampling.log_probs(scores).cpu().double().numpy()  # from a GPU in one piece
        for row in filter(self._speaks, range(len(self._rngs))):
            token = draw(log_probs[row], self._rngs[row])
            self._tokens[row].append(token)
            self._sums[row] += float(log_probs[row, token])
        last = torch.tensor([tokens[-1] for tokens in self._tokens], device=scores.device)
        return torch.full_like(scores, float("-inf")).scatter(1, last[:, None], 0.0)

    def answers(self) -> list[Answer]:
        return [Answer(tokens, total) for tokens, total in zip(self._tokens, self._sums, strict=True)]

    def _speaks(self, row: int) -> bool:
        tokens = self._tokens[row]
        return not tokens or (tokens[-1] not in self._sampling.ends and len(tokens) < self._sampling.length)
