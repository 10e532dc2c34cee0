"""An environment and an agent of your own, trained over SSH without installing them anywhere.

    python run.py --config-path config/multimachine --config-name host dry_run=true \\
        emulator=gymnasium emulator.entry_point=examples.corridor:Corridor \\
        agent=custom agent.entry_point=examples.corridor:LinearAgent save_path=runs/corridor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from digirl_dist import Decision, DiscreteActions, EmulatorSpec, Observation


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Walk to the end that a light shows, within ten steps: 0 is left, 1 is right."""

    def __init__(self, length: int = 7) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._half = length // 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._light = int(self.np_random.choice([-1, 1]))
        self._place, self._steps = 0, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._place += 1 if action == 1 else -1
        self._steps += 1
        at_end = abs(self._place) == self._half
        success = at_end and np.sign(self._place) == self._light
        return self._see(), float(success), at_end, self._steps >= 10, {"success": bool(success)}

    def _see(self) -> np.ndarray:
        return np.array([self._light, self._place / self._half], np.float32)


class LinearAgent(nn.Module):
    """Logits that are linear in what is seen. Three methods are all that an agent needs (see digirl_dist/agent)."""

    def __init__(self, spec: EmulatorSpec) -> None:
        super().__init__()
        assert isinstance(spec.actions, DiscreteActions)
        self.feature_size = spec.vector_size
        self.layer = nn.Linear(spec.vector_size, spec.actions.n)

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        rows = self._log_probs(observations).cpu().numpy()
        drawn = [int(np.argmax(row + rng.gumbel(size=row.shape))) for row, rng in zip(rows, rngs, strict=True)]
        return [Decision(action, float(row[action])) for row, action in zip(rows, drawn, strict=True)]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[int]) -> torch.Tensor:
        rows = self._log_probs(observations)  # on the GPU, if the host has one
        return rows.gather(1, torch.tensor(actions, device=rows.device)[:, None])[:, 0]

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        seen = np.stack([each.vector for each in observations if each.vector is not None])
        return torch.from_numpy(seen).to(self.layer.weight.device)

    def _log_probs(self, observations: Sequence[Observation]) -> torch.Tensor:
        return self.layer(self.features(observations)).log_softmax(-1)
