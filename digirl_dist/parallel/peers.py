"""What an algorithm must know of other ranks: its part of a minibatch, and the gradient of all parts together.

An algorithm that draws minibatches through ``align`` and calls ``average_gradients`` between ``backward`` and clipping
makes the same updates on any number of ranks as one process makes on all their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from digirl_dist.parallel.group import Group

Batches = list[list[int]]


class Peers(Protocol):
    """Ranks that learn together."""

    def align(self, batches: Batches) -> Batches:
        """This rank's part of each minibatch; as many on each rank, and some may be empty."""

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter], weight: float, loss: float) -> float:
        """Turn the gradients of this rank's mean loss into those of the mean over all ranks' rows.

        ``weight`` is the sum of the weights of this rank's rows (their number, where rows weigh alike), 0 for an
        empty part. Returns the mean loss over all rows. All ranks must call it.
        """

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Sums over this rank's rows, added up over all rows there are."""


class Alone:
    """Peers of the only process there is."""

    def align(self, batches: Batches) -> Batches:
        return batches

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter], weight: float, loss: float) -> float:
        return loss

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


ALONE = Alone()


class SharedRows:
    """Peers that have the same rows and draw the same minibatches: each takes its share of every one."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def align(self, batches: Batches) -> Batches:
        rank = self._group.rank
        return [batch[rank.rank :: rank.world_size] for batch in batches]

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter], weight: float, loss: float) -> float:
        return average(self._group, list(parameters), weight, loss)

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class OwnRows:
    """Peers that have rows of their own: a minibatch is one of each rank's together."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def align(self, batches: Batches) -> Batches:
        most = self._group.largest(len(batches))
        return [*batches, *([] for _ in range(most - len(batches)))]

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter], weight: float, loss: float) -> float:
        return average(self._group, list(parameters), weight, loss)

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return self._group.sum(sums.clone())


def average(group: Group, parameters: Sequence[torch.nn.Parameter], weight: float, loss: float) -> float:
    """The weighted mean of the ranks' gradients, in one exchange; see ``Peers.average_gradients``.

    A parameter that has no gradient on any rank has none afterwards.
    """
    import torch

    learning = [parameter for parameter in parameters if parameter.requires_grad]
    device = learning[0].device
    has = [0.0 if parameter.grad is None else 1.0 for parameter in learning]
    gradients = [_gradient(parameter).reshape(-1) * weight for parameter in learning]
    figures = torch.tensor([weight, weight * loss if weight else 0.0, *has], device=device)
    summed = group.sum(torch.cat([*gradients, figures.to(gradients[0].dtype)]))
    everywhere = float(summed[-len(figures)])
    offset = 0
    for parameter, holders in zip(learning, summed[-len(has) :].tolist(), strict=True):
        mean = summed[offset : offset + parameter.numel()].view_as(parameter) / (everywhere or 1.0)
        parameter.grad = mean if holders else None
        offset += parameter.numel()
    return float(summed[1 - len(figures)]) / (everywhere or 1.0)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
