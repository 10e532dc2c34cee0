"""Figures of an update over all ranks, whatever rows each of them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from digirl_dist.parallel.peers import Peers


def totals(own: Mapping[str, float], peers: Peers) -> dict[str, float]:
    """Returns the sums over the rows of all ranks. Every rank must call it, with the same names in the same order."""
    sums = peers.total(torch.tensor(list(own.values()), dtype=torch.float64)).tolist()
    return dict(zip(own, sums, strict=True))


def nobody_has(rows: Sequence[Any], peers: Peers) -> bool:
    """Whether the ``rows`` are empty on every rank. Every rank must call it."""
    return not totals({"rows": len(rows)}, peers)["rows"]
