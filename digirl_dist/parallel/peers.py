"""Cuts the rows of a step over ranks, and averages the gradients of their parts in one exchange.

``MinibatchOptimizer`` makes the same updates on any number of ranks as one process makes on all their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, chain
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from digirl_dist.parallel.group import Group
    from digirl_dist.parallel.rank import Rank

Batches = list[list[int]]
Compute = Callable[[Sequence[int]], "torch.Tensor"]
"""Returns a line of a matrix [n, F] for each of some rows; never asked for none."""
Stepped = Callable[[int, int], object]
"""Is told how many optimizer steps are made, and of how many."""


def unheard(made: int, of: int) -> None:
    """Where nobody asks how far an update is."""


class Peers(Protocol):
    """Ranks that learn together."""

    replicas: ClassVar[bool]
    """Whether every rank has all the weights; else each has a part (see ``agent.sharding``)."""

    stepped: Stepped
    """Called before each optimizer step."""

    def align(self, batches: Batches) -> Batches:
        """Returns this rank's part of each minibatch. Every rank has equally many parts, some of them empty."""

    def passes(self, part: list[int], rows: int, at_once: int) -> Batches:
        """Returns this rank's part of a minibatch of ``rows`` rows, ``at_once`` at a time.

        Ranks that hold a part of the weights each make equally many passes, of which some may have no row.
        """

    def share(self, weight: float) -> float:
        """Returns the factor of this rank's mean loss in backward passes; ``weight`` is the sum of its rows' weights.

        All ranks must call it.
        """

    def exchange(self, parameters: Iterable[torch.nn.Parameter], loss: float, weight: float) -> float:
        """Turns gradients of the ranks' mean losses, times ``share``, into that of the mean over all rows.

        Returns that mean. ``weight`` is the sum of the weights of this rank's rows (their number, where rows weigh
        alike); 0 for an empty part. All ranks must call it.
        """

    def spread(self, rows: int, compute: Compute, drawn: Sequence[list[int]] = ()) -> torch.Tensor:
        """Returns [N, F] for this rank's rows; of rows that ranks share, each rank computes its part.

        That is every W-th of them or, where minibatches were ``drawn``, what it will learn from first, so that what it
        remembers of a row helps. Lines of parts that differ in width are filled up with 0. All ranks must call it.
        """

    def clip(self, parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
        """Shortens the gradient of all parameters together to the length ``limit`` and returns how long it was."""

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepares an optimiser before its first step."""

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Turns ``sums`` over this rank's rows into sums over the rows of all ranks."""

    def total_of_parts(self, sums: torch.Tensor) -> torch.Tensor:
        """Turns ``sums`` over this rank's parts of minibatches into sums over those of all ranks."""


class _Replica:
    """Peers of a rank that has all the weights."""

    replicas: ClassVar[bool] = True

    def __init__(self, stepped: Stepped = unheard) -> None:
        self.stepped = stepped

    def passes(self, part: list[int], rows: int, at_once: int) -> Batches:
        return [part[first : first + at_once] for first in range(0, len(part), at_once)]

    def share(self, weight: float) -> float:
        return 1.0

    def spread(self, rows: int, compute: Compute, drawn: Sequence[list[int]] = ()) -> torch.Tensor:
        import torch

        return compute(range(rows)) if rows else torch.zeros(0, 1)

    def clip(self, parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
        from torch.nn.utils import clip_grad_norm_

        return float(clip_grad_norm_(parameters, limit))

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves the optimiser as it is."""


class Alone(_Replica):
    """Peers of the only process there is."""

    def align(self, batches: Batches) -> Batches:
        return batches

    def exchange(self, parameters: Iterable[torch.nn.Parameter], loss: float, weight: float) -> float:
        return loss

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums

    total_of_parts = total


ALONE = Alone()


class _Together(_Replica):
    """Peers that average their gradients."""

    def __init__(self, group: Group, stepped: Stepped = unheard) -> None:
        super().__init__(stepped)
        self._group = group

    def exchange(self, parameters: Iterable[torch.nn.Parameter], loss: float, weight: float) -> float:
        return average(self._group, list(parameters), weight, loss)

    def total_of_parts(self, sums: torch.Tensor) -> torch.Tensor:
        return self._group.sum(sums.clone())


class SharedRows(_Together):
    """Peers that have the same rows and draw the same minibatches, of which each takes its share."""

    def align(self, batches: Batches) -> Batches:
        return cut(batches, self._group.rank)

    def spread(self, rows: int, compute: Compute, drawn: Sequence[list[int]] = ()) -> torch.Tensor:
        part = part_of(rows, self._group.rank, drawn)
        return gathered(self._group, rows, part, compute(part) if part else None)

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class OwnRows(_Together):
    """Peers that have rows of their own: one minibatch of each rank makes a joint one."""

    def align(self, batches: Batches) -> Batches:
        most = self._group.largest(len(batches))
        return [*batches, *([] for _ in range(most - len(batches)))]

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return self.total_of_parts(sums)


def average(group: Group, parameters: Sequence[torch.nn.Parameter], weight: float, loss: float) -> float:
    """Averages the ranks' gradients and losses by their weights, in one exchange; see ``Peers.exchange``.

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


def cut(batches: Batches, rank: Rank) -> Batches:
    """Returns a rank's part of each minibatch: as many rows as the others, or one more or less, in each and in all."""
    world, ends = rank.world_size, accumulate(map(len, batches))
    return [batch[(rank.rank - end + len(batch)) % world :: world] for end, batch in zip(ends, batches, strict=True)]


def part_of(rows: int, rank: Rank, drawn: Sequence[list[int]]) -> Sequence[int]:
    """Returns this rank's of so many rows: every W-th, or those that are in its part where they are first ``drawn``."""
    order = enumerate(chain.from_iterable(drawn or [range(rows)]))
    places = {row: place for place, row in reversed([*order])}
    return [row for row, place in places.items() if row < rows and place % rank.world_size == rank.rank]


def gathered(group: Group, rows: int, part: Sequence[int], found: torch.Tensor | None) -> torch.Tensor:
    """Returns the lines [N, F] of all ranks, from those that each ``found`` for its part of the rows (None: no row)."""
    import torch

    whole = torch.zeros(rows, group.largest(1 if found is None else found.shape[1]))
    if found is not None:
        whole[list(part), : found.shape[1]] = found.detach().to(whole)
    return group.sum(whole)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
