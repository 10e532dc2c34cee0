"""Trajectories as bytes: the content of a Parquet file, which nothing has to unpickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from digirl_dist.parallel.rank import Rank
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Trajectory


def numbered(trajectories: Sequence[Trajectory], rank: Rank) -> list[Trajectory]:
    """An iteration's trajectories with tickets of their own: of rank r of W, those that leave r divided by W."""
    indices = range(rank.rank, rank.rank + len(trajectories) * rank.world_size, rank.world_size)
    pairs = zip(trajectories, indices, strict=True)
    return [replace(each, ticket=replace(each.ticket, index=index)) for each, index in pairs]


def to_parquet_bytes(trajectories: Sequence[Trajectory]) -> bytes:
    """Empty for none. Their tickets must differ."""
    if not trajectories:
        return b""
    with TemporaryDirectory(prefix="digirl-dist-parcel-") as folder:
        path = Path(folder) / "parcel.parquet"
        parquet.write(path, trajectories)
        return path.read_bytes()


def from_parquet_bytes(data: bytes) -> list[Trajectory]:
    """The inverse. Raises TrajectoryError for anything else."""
    if not data:
        return []
    with TemporaryDirectory(prefix="digirl-dist-parcel-") as folder:
        path = Path(folder) / "parcel.parquet"
        path.write_bytes(data)
        return list(parquet.read(path))


def joined(parcels: Sequence[bytes]) -> list[Trajectory]:
    """The trajectories of all ranks, in the order of their tickets."""
    found = [each for parcel in parcels for each in from_parquet_bytes(parcel)]
    return sorted(found, key=lambda each: each.ticket.key)
