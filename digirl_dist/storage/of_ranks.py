"""Whose episodes are whose in the store of a run on ranks: the ticket's index modulo the number of ranks says it."""

from __future__ import annotations

from collections.abc import Sequence

from digirl_dist.parallel.rank import Rank
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trajectory import Trajectory


def of_rank(trajectories: Sequence[Trajectory], rank: Rank) -> list[Trajectory]:
    """Returns the trajectories to which this rank assigned their index."""
    return [each for each in trajectories if each.ticket.index % rank.world_size == rank.rank]


def newest_of_rank(store: Store, before: int, capacity: int, rank: Rank) -> list[Trajectory]:
    """Returns the newest ``capacity`` episodes of one rank from iterations below ``before``, oldest first."""
    return of_rank(newest_of_each_rank(store, before, capacity, rank.world_size), rank)


def newest_of_each_rank(store: Store, before: int, capacity: int, world_size: int) -> list[Trajectory]:
    """Returns the newest ``capacity`` episodes of every rank from iterations below ``before``; a rank's oldest first.

    Iterations in which no episode ended have no file and are passed over.
    """
    kept: dict[Rank, list[Trajectory]] = {Rank(rank, world_size): [] for rank in range(world_size)}
    for iteration in reversed(range(before)):
        if all(len(own) >= capacity for own in kept.values()):
            break
        brought = store.read(iteration) if store.has(Round(iteration)) else ()
        kept = {rank: [*of_rank(brought, rank), *own][-capacity:] for rank, own in kept.items()}
    return [each for own in kept.values() for each in own]
