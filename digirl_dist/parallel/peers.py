"""Spreads minibatches over ranks, and averages the gradients of their parts.

An algorithm that draws minibatches through ``align`` and calls ``backward`` and ``clip`` makes the same updates on any
number of ranks as one process makes on all their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from digirl_dist.parallel.group import Group

Batches = list[list[int]]


class Peers(Protocol):
    """Ranks that learn together."""

    replicas: ClassVar[bool]
    """Whether every rank has all the weights; else each has a part (see ``agent.sharding``)."""

    def align(self, batches: Batches) -> Batches:
        """Returns this rank's part of each minibatch. Every rank has equally many parts, some of them empty."""

    def backward(
        self, parameters: Iterable[torch.nn.Parameter], loss: torch.Tensor | None, weight: float, scale: float
    ) -> float:
        """Computes the gradient of the mean loss over all ranks' rows, times ``scale``, and returns that mean.

        ``loss`` is the mean over this rank's rows and ``weight`` the sum of their weights (their number, where rows
        weigh alike); None and 0 for an empty part. The parameters' gradients are None before. All ranks must call it.
        """

    def clip(self, parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
        """Shortens the gradient of all parameters together to the length ``limit`` and returns how long it was."""

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepares an optimiser before its first step."""

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Turns ``sums`` over this rank's rows into sums over the rows of all ranks."""


class _Replica:
    """Peers of a rank that has all the weights."""

    replicas: ClassVar[bool] = True

    def clip(self, parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
        from torch.nn.utils import clip_grad_norm_

        return float(clip_grad_norm_(parameters, limit))

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves the optimiser as it is."""


class Alone(_Replica):
    """Peers of the only process there is."""

    def align(self, batches: Batches) -> Batches:
        return batches

    def backward(
        self, parameters: Iterable[torch.nn.Parameter], loss: torch.Tensor | None, weight: float, scale: float
    ) -> float:
        return _backward(loss, scale)

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


ALONE = Alone()


class _Together(_Replica):
    """Peers that average their gradients."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def backward(
        self, parameters: Iterable[torch.nn.Parameter], loss: torch.Tensor | None, weight: float, scale: float
    ) -> float:
        return average(self._group, list(parameters), weight, _backward(loss, scale))


class SharedRows(_Together):
    """Peers that have the same rows and draw the same minibatches, of which each takes its share."""

    def align(self, batches: Batches) -> Batches:
        rank = self._group.rank
        return [batch[rank.rank :: rank.world_size] for batch in batches]

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class OwnRows(_Together):
    """Peers that have rows of their own: one minibatch of each rank makes a joint one."""

    def align(self, batches: Batches) -> Batches:
        most = self._group.largest(len(batches))
        return [*batches, *([] for _ in range(most - len(batches)))]

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return self._group.sum(sums.clone())


def average(group: Group, parameters: Sequence[torch.nn.Parameter], weight: float, loss: float) -> float:
    """Averages the ranks' gradients and losses by their weights, in one exchange; see ``Peers.backward``.

    A parameter that has no gradient on any rank has none afterwards. Sums are in float32 at least: bfloat16 counts to
    256.
    """
    import torch

    learning = [parameter for parameter in parameters if parameter.requires_grad]
    dtype = reduce(torch.promote_types, (parameter.dtype for parameter in learning), torch.float32)
    has = [0.0 if parameter.grad is None else 1.0 for parameter in learning]
    gradients = [_gradient(parameter).reshape(-1).to(dtype) * weight for parameter in learning]
    figures = torch.tensor([weight, weight * loss if weight else 0.0, *has], dtype=dtype, device=gradients[0].device)
    summed = group.sum(torch.cat([*gradients, figures]))
    everywhere = float(summed[-len(figures)])
    offset = 0
    for parameter, holders in zip(learning, summed[-len(has) :].tolist(), strict=True):
        mean = summed[offset : offset + parameter.numel()].view_as(parameter) / (everywhere or 1.0)
        parameter.grad = mean.to(parameter.dtype) if holders else None
        offset += parameter.numel()
    return float(summed[1 - len(figures)]) / (everywhere or 1.0)


def _backward(loss: torch.Tensor | None, scale: float) -> float:
    """Computes the gradient of ``loss`` times ``scale`` and returns the loss."""
    if loss is None:
        return 0.0
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
