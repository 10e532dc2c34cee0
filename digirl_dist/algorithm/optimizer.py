"""Gradient descent over shuffled minibatches, as every part that learns here does it.

A minibatch is the rows of one step: they are cut over the ranks, each rank passes its part through the agent as many
rows at a time as fit, and the ranks exchange their gradients once.
"""

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


class Drawn(NamedTuple):
    """The minibatches of an update, as row indices."""

    batches: list[list[int]]
    parts: list[list[int]]
    """This rank's part of each."""


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
    """Adam with clipped gradients, over shuffled minibatches. Keeps its state, its random numbers and its schedule.

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
        self._updates = 0

    @property
    def learning_rate(self) -> float:
        """That of the next ``fit``: it falls linearly to 0 over ``anneal_iterations``."""
        iterations = self._settings.anneal_iterations
        left = 1.0 if iterations is None else max(0.0, 1 - self._updates / iterations)
        return left * self._settings.learning_rate

    def draw(self, rows: int, fresh: int = 0) -> Drawn:
        """Draws the minibatches of an update: up to ``epochs`` passes over the rows, ``max_examples`` in all.

        The first ``fresh`` rows are never left out.
        """
        drawn = batches(rows, self._settings, self._generator, fresh)
        parts = self._peers.align(drawn)
        return Drawn(drawn + [[] for _ in range(len(parts) - len(drawn))], parts)

    def fit(
        self, rows: int | Drawn, loss_of: LossOf, weight_of: WeightOf = len, fresh: int = 0, share: float = 1.0
    ) -> Fit:
        """Makes a step of each minibatch, ``rows_at_once`` of this rank's rows at a time, with one exchange.

        Draws them first for a number of ``rows``; of the minibatches only a ``share`` may have their turn. A step whose
        loss or gradient is not finite, or whose loss is beyond ``MAX_LOSS``, is skipped, on every rank alike. Raises
        TrainingError when that is more than half of all steps.
        """
        drawn = self.draw(rows, fresh) if isinstance(rows, int) else rows
        losses: list[float] = []
        faults: list[str] = []
        learned: set[int] = set()
        steps = math.ceil(share * len(drawn.batches))
        for made, (batch, part) in enumerate(zip(drawn.batches[:steps], drawn.parts[:steps], strict=True)):
            self._peers.stepped(made, steps)
            loss, fault = self._step(part, len(batch), loss_of, weight_of)
            if fault:
                faults.append(fault)
                if len(faults) > _MOST_SKIPPED * steps:
                    raise TrainingError(f"in {len(faults)} of {steps} steps {fault}")
            else:
                losses.append(loss)
                learned.update(batch)
        self._updates += 1
        return Fit(sum(losses) / len(losses) if losses else 0.0, len(faults), frozenset(learned))

    def state_dict(self) -> dict[str, Any]:
        state = self._optimizer.state_dict()
        return {"optimizer": state, "generator": self._generator.get_state(), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self._updates = state["updates"]

    def _step(self, part: list[int], rows: int, loss_of: LossOf, weight_of: WeightOf) -> tuple[float, str]:
        """Makes one step from this rank's part of a minibatch of so many ``rows``.

        Returns the loss of all, and why no step was made of it; empty if one was. Both are the same on every rank.
        """
        self._optimizer.zero_grad()
        loss = self._backward(part, rows, loss_of, weight_of)
        length = self._peers.clip(self._parameters, self._settings.clip_norm)
        if fault := fault_of(loss, length, self._settings.MAX_LOSS, self._what):
            return 0.0, fault
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = self.learning_rate
        self._decay()
        self._optimizer.step()
        return loss, ""

    def _backward(self, part: list[int], rows: int, loss_of: LossOf, weight_of: WeightOf) -> float:
        """Leaves the gradient of a minibatch, all ranks' parts together; returns its loss."""
        weight, mean = float(weight_of(part)) if part else 0.0, 0.0
        share = self._peers.share(weight)
        for chosen in self._peers.passes(part, rows, self._settings.rows_at_once or max(1, rows)):
            of_chosen = float(weight_of(chosen)) / weight if chosen else 0.0
            loss = loss_of(chosen or part[-1:])
            (loss * (share * of_chosen)).backward()  # type: ignore[no-untyped-call]
            mean += of_chosen * float(loss.detach())
        return self._peers.exchange(self._parameters, mean, weight)

    @torch.no_grad()
    def _decay(self) -> None:
        """Decoupled weight decay (arXiv 1711.05101) of what has a gradient: the rest is frozen, or not in use."""
        if self._settings.weight_decay:
            for parameter in (each for each in self._parameters if each.grad is not None):
                parameter.mul_(1 - self.learning_rate * self._settings.weight_decay)


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


def fault_of(loss: float, length: float, most: float, what: str) -> str:
    """Why no step can be made of a minibatch with this loss and a gradient of this length; empty if one can."""
    for name, value, limit in ((what, loss, most), (f"the gradient of {what}", length, math.inf)):
        if not math.isfinite(value):
            return f"{name} became {value}; lower the learning rate, or look for actions of probability 0"
        if abs(value) > limit:
            return f"{name} became {value:.3g}, beyond {limit:.3g}; lower the learning rate"
    return ""


def totals(own: Mapping[str, float], peers: Peers) -> dict[str, float]:
    """Returns the sums over the rows of all ranks. Every rank must call it, with the same names in the same order."""
    sums = peers.total(torch.tensor(list(own.values()), dtype=torch.float64)).tolist()
    return dict(zip(own, sums, strict=True))


def nobody_has(rows: Sequence[Any], peers: Peers) -> bool:
    """Whether the ``rows`` are empty on every rank. Every rank must call it."""
    return not totals({"rows": len(rows)}, peers)["rows"]
