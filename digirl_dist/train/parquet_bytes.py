"""Encodes trajectories as the bytes of a Parquet file, for the way between ranks; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from digirl_dist.parallel.rank import Rank
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Trajectory


def assign_indices(trajectories: Sequence[Trajectory], rank: Rank) -> list[Trajectory]:
    """Returns one iteration's trajectories with ticket indices that no other rank uses: r, r + W, … on rank r of W."""
    indices = range(rank.rank, rank.rank + len(trajectories) * rank.world_size, rank.world_size)
    pairs = zip(trajectories, indices, strict=True)
    return [replace(each, ticket=replace(each.ticket, index=index)) for each, index in pairs]


def to_parquet_bytes(trajectories: Sequence[Trajectory]) -> bytes:
    """Returns the content of a Parquet file, empty for no trajectories. Their tickets must differ."""
    if not trajectories:
        return b""
    sink = pa.BufferOutputStream()
    parquet.write_to(sink, trajectories)
    return bytes(sink.getvalue())


def from_parquet_bytes(data: bytes) -> list[Trajectory]:
    """Inverts ``to_parquet_bytes``. Raises TrajectoryError for anything else."""
    return parquet.read(pa.BufferReader(data)) if data else []


def merge_ranks(parts: Sequence[bytes]) -> list[Trajectory]:
    """Returns the trajectories of all ranks, in the order of their tickets."""
    found = [each for part in parts for each in from_parquet_bytes(part)]
    return sorted(found, key=lambda each: each.ticket.key)
