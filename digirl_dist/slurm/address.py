"""Where a worker is that Slurm finds a node for."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.ssh.connection import Address


@dataclass(frozen=True)
class SlurmAddress(Address):
    """A worker on a node of this process's own allocation, or of a job that is submitted for it."""

    node: int | None = None
    """The node's place in this allocation, from 0; None: a job's."""
    folder: str = ""
    """A folder on the node for the job's sign of life; may start with ``~/``."""
    cpus: int | None = None
    """Cores of the job; None: all of its node."""
