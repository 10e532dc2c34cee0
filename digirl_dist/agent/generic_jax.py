"""The generic policy's probabilities in JAX: functions of its weights, under the names that its checkpoint has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.agent.generic import GenericPolicy, middle_and_reach
from digirl_dist.emulator import BoxActions
from digirl_dist.errors import SettingsError
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

Weights = Mapping[str, jax.Array]
"""By the names of ``GenericPolicy.state_dict()``."""

Arrays = dict[str, Any]
"""B rows of each; ``vectors`` and ``pixels`` as in ``Inputs``, whichever the emulator shows."""

_EXACT = jax.lax.Precision.HIGHEST
"""On GPUs XLA would round to TF32: see ``compute_exactly``."""


class JaxGenericPolicy:
    """Computes what ``GenericPolicy`` does, from weights that are handed in."""

    def __init__(self, agent: Agent) -> None:
        """Raises SettingsError for another agent."""
        if not isinstance(agent, GenericPolicy):
            raise SettingsError(f"trainer=jax can learn agent=generic alone, not {type(agent).__name__}")
        self._agent = agent
        self.parameters = dict(agent.named_parameters())
        actions = agent.spec.actions
        self._bounds = middle_and_reach(actions.low, actions.high) if isinstance(actions, BoxActions) else None

    def arrays(self, observations: Sequence[Observation], actions: Sequence[Json]) -> Arrays:
        """What ``log_prob`` looks at, of B rows."""
        inputs = self._agent.inputs(observations)
        found = {"vectors": inputs.vectors, "pixels": inputs.pixels}
        kind, shape = (np.int32, (-1,)) if self._bounds is None else (np.float32, (-1, len(self._bounds[0])))
        chosen = np.array(actions, kind).reshape(shape)
        return {name: part.numpy() for name, part in found.items() if part is not None} | {"actions": chosen}

    def log_prob(self, weights: Weights, rows: Arrays) -> jax.Array:
        """As ``GenericPolicy.log_prob``, shape [B]."""
        features = _features(weights, rows)
        if self._bounds is None:
            log_probs = jax.nn.log_softmax(linear(weights, "_head._logits", features), axis=1)
            return jnp.take_along_axis(log_probs, rows["actions"][:, None], axis=1)[:, 0]
        middle, reach = (jnp.asarray(bound, jnp.float32) for bound in self._bounds)
        mean = middle + reach * linear(weights, "_head._mean", features)
        log_std = weights["_head._log_std"] + jnp.log(reach)
        noise = (rows["actions"] - mean) / jnp.exp(log_std)
        return -jnp.sum(0.5 * noise**2 + log_std + 0.5 * math.log(2 * math.pi), axis=1)


def _features(weights: Weights, rows: Arrays) -> jax.Array:
    parts = []
    if "vectors" in rows:
        hidden = jnp.tanh(linear(weights, "_encoder._vector.0", rows["vectors"]))
        parts.append(jnp.tanh(linear(weights, "_encoder._vector.2", hidden)))
    if "pixels" in rows:
        seen = rows["pixels"].astype(jnp.float32) / 127.5 - 1
        seen = jax.nn.relu(_convolution(weights, "_encoder._vision.0", seen, stride=4))
        seen = jax.nn.relu(_convolution(weights, "_encoder._vision.2", seen, stride=2))
        flat = seen.reshape(seen.shape[0], -1)
        parts.append(jnp.tanh(linear(weights, "_encoder._vision.5", flat)))
    return jnp.concatenate(parts, axis=1)


def linear(weights: Weights, name: str, rows: jax.Array) -> jax.Array:
    """A layer of torch: its weight has shape [out, in]."""
    return jnp.matmul(rows, weights[f"{name}.weight"].T, precision=_EXACT) + weights[f"{name}.bias"]


def _convolution(weights: Weights, name: str, images: jax.Array, stride: int) -> jax.Array:
    """A layer of torch: images have shape [B, channels, height, width], its weight [out, in, height, width]."""
    kernel = weights[f"{name}.weight"]
    found = jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", precision=_EXACT)
    return found + weights[f"{name}.bias"][:, None, None]
