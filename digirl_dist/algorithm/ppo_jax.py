"""PPO's updates by JAX: gradients, their mean over all ranks, clipping and Adam; the same as PyTorch's to rounding.

Ranks run one program on rows that are spread over them, and XLA puts the exchange where the mean is. So there is one
loss for one process and for many. The policy that acts stays in PyTorch; its weights come back after each update.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from digirl_dist.agent import Agent
from digirl_dist.agent.generic_jax import Arrays, JaxGenericPolicy, linear
from digirl_dist.algorithm.advantages import MOST_LOG_RATIO, most_ratio
from digirl_dist.algorithm.optimizer import Adam, Fit, batches, fault_of, ramp, refuse_many, weight_shares
from digirl_dist.algorithm.options import PpoOptions
from digirl_dist.algorithm.ppo import LOSS, Rows
from digirl_dist.parallel.peers import Peers

_VALUE = "value."
"""The value function's weights stand beside the policy's under this prefix."""


class JaxLearner:
    """Fulfils ``Learner``; each rank computes on one device. Its state is that of a learner in PyTorch."""

    def __init__(self, agent: Agent, value: nn.Module, settings: PpoOptions, seed: int, peers: Peers) -> None:
        """Raises SettingsError for another agent than the generic one."""
        self._policy = JaxGenericPolicy(agent)
        values = {_VALUE + name: parameter for name, parameter in value.named_parameters()}
        self._parameters = self._policy.parameters | values
        self._settings = settings
        self._peers = peers
        self._generator = torch.Generator().manual_seed(seed)
        self._steps = 0
        self._ranks = _Ranks()
        self._adam = optax.scale_by_adam(eps=settings.adam_eps)
        self._moments = self._ranks.replicated(self._adam.init(self._weights()))
        self._gradient = jax.jit(jax.value_and_grad(self._loss), out_shardings=self._ranks.everywhere)
        self._move = jax.jit(self._moved, out_shardings=self._ranks.everywhere)

    def fit(self, rows: Rows, rate: float) -> Fit:
        count = len(rows.observations)
        drawn = self._peers.align(batches(count, self._settings, self._generator, fresh=count))
        arrays = self._arrays(rows)
        weights = self._ranks.replicated(self._weights())
        losses: list[float] = []
        faults: list[str] = []
        firsts = range(0, len(drawn), self._settings.accumulate)
        for first in firsts:
            group = drawn[first : first + self._settings.accumulate]
            found = [self._gradient(weights, self._batch(arrays, batch)) for batch in group]
            shares = weight_shares(group, len, self._peers)
            of_parts = [float(loss) for loss, _ in found]
            weights, fault = self._step(weights, of_parts, [gradient for _, gradient in found], shares, rate)
            if fault:
                faults.append(fault)
                refuse_many(faults, len(firsts))
            else:
                losses.append(sum(share * loss for share, loss in zip(shares, of_parts, strict=True)))
        vector_to_parameters(_tensor(weights), self._parameters.values())
        learned = frozenset(range(count))
        return Fit(sum(losses) / len(losses) if losses else 0.0, len(faults), learned)

    def state_dict(self) -> dict[str, Any]:
        count, mean, square = (_tensor(each) for each in self._moments)
        adam = self._torch_adam()
        means, squares = self._parts(mean), self._parts(square)
        for name, parameter in self._parameters.items() if count else ():
            step = count.to(torch.float32)
            adam.state[parameter] = {"step": step, "exp_avg": means[name], "exp_avg_sq": squares[name]}
        return {"optimizer": adam.state_dict(), "generator": self._generator.get_state(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        adam = self._torch_adam()
        adam.load_state_dict(state["optimizer"])
        moments = self._adam.init(self._weights())
        if adam.state:
            known = [adam.state[parameter] for parameter in self._parameters.values()]
            mean, square = (parameters_to_vector([each[key] for each in known]) for key in ("exp_avg", "exp_avg_sq"))
            moments = type(moments)(np.int32(known[0]["step"]), mean.cpu().numpy(), square.cpu().numpy())
        self._moments = self._ranks.replicated(moments)
        self._generator.set_state(state["generator"])
        self._steps = state["steps"]

    def _torch_adam(self) -> Adam:
        """Gives the state its form."""
        return Adam(self._parameters.values(), self._settings.learning_rate, eps=self._settings.adam_eps)

    def _weights(self) -> np.ndarray:
        """All of them, one after the other: JAX compiles much less, and ranks exchange one vector."""
        return parameters_to_vector(self._parameters.values()).detach().cpu().numpy()

    def _parts(self, flat: Any) -> dict[str, Any]:
        """The inverse, of an array or a tensor: what belongs to each parameter."""
        parameters = self._parameters.values()
        ends = itertools.accumulate(parameter.numel() for parameter in parameters)
        parts = [flat[end - each.numel() : end].reshape(each.shape) for end, each in zip(ends, parameters, strict=True)]
        return dict(zip(self._parameters, parts, strict=True))

    def _arrays(self, rows: Rows) -> Arrays:
        """This rank's rows."""
        numbers = {
            "log_probs": rows.log_probs,
            "seen": rows.seen,
            "advantages": rows.advantages,
            "returns": rows.returns,
        }
        arrays = {name: tensor.cpu().numpy() for name, tensor in numbers.items()}
        weights = np.ones(len(rows.observations), np.float32)
        return self._policy.arrays(rows.observations, rows.actions) | arrays | {"weights": weights}

    def _batch(self, arrays: Arrays, batch: Sequence[int]) -> Arrays:
        """A minibatch of all ranks; each one's part is filled up to one size with rows of weight 0."""
        size = self._settings.batch_size
        return {name: self._ranks.spread(_filled(array[batch], size)) for name, array in arrays.items()}

    def _loss(self, flat: jax.Array, rows: Arrays) -> jax.Array:
        """The mean over the rows of all ranks, as in ``TorchLearner``."""
        weights = self._parts(flat)
        moved = self._policy.log_prob(weights, rows) - rows["log_probs"]
        ratios = jnp.exp(jnp.clip(moved, -MOST_LOG_RATIO, MOST_LOG_RATIO))
        clip, advantages = self._settings.clip_ratio, rows["advantages"]
        clipped = jnp.clip(ratios, 1 - clip, 1 + clip) * advantages
        gains = jnp.minimum(jnp.minimum(ratios, most_ratio(clip)) * advantages, clipped)
        hidden = jnp.tanh(linear(weights, _VALUE + "0", rows["seen"]))
        hidden = jnp.tanh(linear(weights, _VALUE + "2", hidden))
        errors = (linear(weights, _VALUE + "4", hidden)[:, 0] - rows["returns"]) ** 2
        losses = self._settings.value_weight * errors - gains
        return jnp.sum(rows["weights"] * losses) / jnp.sum(rows["weights"])

    def _step(
        self, weights: jax.Array, losses: list[float], gradients: list[jax.Array], shares: list[float], rate: float
    ) -> tuple[jax.Array, str]:
        """Returns the weights after a step, or as they are and why none can be made."""
        rate *= self._settings.learning_rate * ramp(self._steps, self._settings.ramp_steps)
        moved, moments, length = self._move(weights, self._moments, gradients, shares, rate)
        if fault := fault_of(losses, float(length), self._settings.max_loss, LOSS):
            return weights, fault
        self._moments = moments
        self._steps += 1
        return moved, ""

    def _moved(
        self, weights: jax.Array, moments: optax.OptState, gradients: list[jax.Array], shares: list[float], rate: float
    ) -> tuple[jax.Array, optax.OptState, jax.Array]:
        """Weights and moments after a step of Adam along the gradients' mean by ``shares``, and the length of that."""
        parts = [share * gradient for share, gradient in zip(shares, gradients, strict=True)]
        mean = sum(parts, jnp.zeros_like(weights))
        length = jnp.linalg.norm(mean)
        step, moments = self._adam.update(mean * jnp.minimum(1.0, self._settings.clip_norm / (length + 1e-6)), moments)
        return weights - rate * step, moments, length


class _Ranks:
    """One device of every process; alone, that is one device."""

    def __init__(self) -> None:
        devices = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.array([devices[process] for process in sorted(devices)]), ("ranks",))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_rows = NamedSharding(mesh, PartitionSpec("ranks"))

    def replicated(self, tree: Any) -> Any:
        """The same numbers on every rank, which must all have them."""
        return jax.tree.map(lambda each: self._global(self.everywhere, np.asarray(each), np.shape(each)), tree)

    def spread(self, rows: np.ndarray) -> Any:
        """The rows of all ranks, one rank's after the other's; equally many of each."""
        return self._global(self._by_rows, rows, (len(self._by_rows.device_set) * len(rows), *rows.shape[1:]))

    def _global(self, sharding: NamedSharding, own: np.ndarray, shape: tuple[int, ...]) -> Any:
        return jax.make_array_from_process_local_data(sharding, own, shape)


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """``rows`` and as many zeros below them as make ``size``."""
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def _tensor(array: jax.Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
