"""Gradient descent over shuffled minibatches, as every part that learns here does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.settings import OptimizerSettings

LossOf = Callable[[list[int]], torch.Tensor]
"""The loss, a scalar and a mean over the rows with these indices; never asked for no rows."""

WeightOf = Callable[[list[int]], float]
"""What that mean divides by: the rows' number, or the sum of their weights."""

_MOST_SKIPPED = 0.5
"""Share of an update's steps beyond which skipping them is no remedy."""


class Fit(NamedTuple):
    """What came of fitting some rows, over all ranks but for ``learned``."""

    loss: float = 0.0
    """Mean of the steps that were made; 0 without any."""
    skipped: int = 0
    """Steps that were not made, because their loss or gradient was not finite, or their loss beyond ``MAX_LOSS``."""
    learned: frozenset[int] = frozenset()
    """This rank's rows that some step was made from."""


def _plain(method: Any) -> Any:
    """Returns a method of torch's optimizers as it was written, without what has the compiler leave it alone."""
    return getattr(method, "__wrapped__", method)


class Adam(torch.optim.Adam):
    """torch's, which does not import torch's compiler: that takes a second of each process, and is not used here."""

    add_param_group = _plain(torch.optim.Adam.add_param_group)
    state_dict = _plain(torch.optim.Adam.state_dict)
    load_state_dict = _plain(torch.optim.Adam.load_state_dict)
    zero_grad = _plain(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(_plain(torch.optim.Adam.step))


class MinibatchOptimizer:
    """Adam with accumulated and clipped gradients. Keeps its state and its random numbers.

    ``what`` names the loss in errors. The learning rate is that of the settings also after a resume, so a run that
    stopped because its loss exploded can go on with a lower rate. With ``peers``, a minibatch is that of all ranks
    together: every rank must call ``fit``, also one without rows.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        settings: OptimizerSettings,
        seed: int,
        what: str,
        peers: Peers = ALONE,
    ) -> None:
        self._parameters = list(parameters)
        self._settings = settings
        self._what = what
        self._peers = peers
        self._optimizer = Adam(self._parameters, lr=settings.learning_rate, eps=settings.ADAM_EPS)
        peers.adopt(self._optimizer)
        self._generator = torch.Generator().manual_seed(seed)

    def fit(self, rows: int, loss_of: LossOf, weight_of: WeightOf = len, rate: float = 1.0, fresh: int = 0) -> Fit:
        """Up to ``epochs`` passes over the rows, ``max_examples`` in all; the first ``fresh`` are never left out.

        ``rate`` is the share of the learning rate to go on with. A step whose loss or gradient is not finite, or whose
        loss is beyond ``MAX_LOSS``, is skipped, on every rank alike. Raises TrainingError when that is more than half
        of all steps.
        """
        drawn = batches(rows, self._settings, self._generator, fresh)
        parts = self._peers.align(drawn)
        drawn += [[] for _ in range(len(parts) - len(drawn))]
        losses: list[float] = []
        faults: list[str] = []
        learned: set[int] = set()
        firsts = range(0, len(parts), self._settings.accumulate)
        for first in firsts:
            last = first + self._settings.accumulate
            shares = weight_shares(drawn[first:last], weight_of, self._peers)
            loss, fault = self._step(list(zip(parts[first:last], shares, strict=True)), loss_of, weight_of, rate)
            if fault:
                faults.append(fault)
                refuse_many(faults, len(firsts))
            else:
                losses.append(loss)
                learned.update(*drawn[first:last])
        return Fit(sum(losses) / len(losses) if losses else 0.0, len(faults), frozenset(learned))

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])

    def _step(
        self, group: Sequence[tuple[list[int], float]], loss_of: LossOf, weight_of: WeightOf, rate: float
    ) -> tuple[float, str]:
        """Makes one step from this rank's rows of some minibatches, each with its share in it.

        Returns the loss of all, and why no step was made of it; empty if one was. Both are the same on every rank.
        """
        found: list[float] = []
        gradients: list[torch.Tensor | None] = [None] * len(self._parameters)
        for part, share in group:
            found.append(self._backward(part, loss_of, weight_of, share))
            gradients = [_plus(sum_of, one.grad) for sum_of, one in zip(gradients, self._parameters, strict=True)]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        length = self._peers.clip(self._parameters, self._settings.clip_norm)
        if fault := fault_of(found, length, self._settings.MAX_LOSS, self._what):
            return 0.0, fault
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = rate * self._settings.learning_rate
        self._optimizer.step()
        return sum(share * loss for (_, share), loss in zip(group, found, strict=True)), ""

    def _backward(self, rows: list[int], loss_of: LossOf, weight_of: WeightOf, scale: float) -> float:
        """Leaves the gradient of a minibatch, all ranks' parts together, times ``scale``; its loss."""
        self._optimizer.zero_grad()
        loss, weight = (loss_of(rows), float(weight_of(rows))) if rows else (None, 0.0)
        return self._peers.backward(self._parameters, loss, weight, scale)


class OptimizerIsTheState:
    """What keeps nothing from one update to the next but its optimiser."""

    _optimizer: MinibatchOptimizer

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


def batches(rows: int, settings: OptimizerSettings, generator: torch.Generator, fresh: int = 0) -> list[list[int]]:
    """Minibatches of indices below ``rows``, equally large but for one row; each pass is shuffled anew.

    They have as many rows as the settings want, and in any case those below ``fresh``: what the limit leaves no room
    for is left out of the others.
    """
    if rows == 0:
        return []
    wanted = max(fresh, min(settings.epochs * rows, settings.max_examples))
    first, *more = [torch.randperm(rows, generator=generator) for _ in range(math.ceil(wanted / rows))]
    others = first >= fresh
    first = first[~others | (others.cumsum(0) <= wanted - fresh)]
    drawn = torch.cat([first, *more])[:wanted]
    return [batch.tolist() for batch in torch.tensor_split(drawn, math.ceil(wanted / settings.batch_size))]


def weight_shares(drawn: Sequence[list[int]], weight_of: WeightOf, peers: Peers) -> list[float]:
    """The share of each minibatch in the weight of all, over all ranks: their gradients, mixed so, are that of one."""
    if len(drawn) == 1:
        return [1.0]
    weights = peers.total(torch.tensor([float(weight_of(batch)) if batch else 0.0 for batch in drawn]))
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _plus(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of two gradients, where None is that of a parameter that was not used."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def fault_of(losses: Sequence[float], length: float, most: float, what: str) -> str:
    """Why no step can be made of minibatches with these losses and a gradient of this length; empty if one can."""
    for name, value, limit in [*((what, loss, most) for loss in losses), (f"the gradient of {what}", length, math.inf)]:
        if not math.isfinite(value):
            return f"{name} became {value}; lower the learning rate, or look for actions of probability 0"
        if abs(value) > limit:
            return f"{name} became {value:.3g}, beyond {limit:.3g}; lower the learning rate"
    return ""


def refuse_many(faults: Sequence[str], steps: int) -> None:
    """Raises TrainingError, with the last of the ``faults``, if they are too many of an update's ``steps``."""
    if len(faults) > _MOST_SKIPPED * steps:
        raise TrainingError(f"in {len(faults)} of {steps} steps {faults[-1]}")


def totals(own: Mapping[str, float], peers: Peers) -> dict[str, float]:
    """Returns the sums over the rows of all ranks. Every rank must call it, with the same names in the same order."""
    sums = peers.total(torch.tensor(list(own.values()), dtype=torch.float64)).tolist()
    return dict(zip(own, sums, strict=True))


def nobody_has(rows: Sequence[Any], peers: Peers) -> bool:
    """Whether the ``rows`` are empty on every rank. Every rank must call it."""
    return not totals({"rows": len(rows)}, peers)["rows"]
