"""On which device a process computes: a pure function of what was asked for and what is there."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.errors import DeviceError
from digirl_dist.parallel.rank import Rank

AUTO = "auto"
"""CUDA where there is any, else the CPU."""


@dataclass(frozen=True)
class Visible:
    """The CUDA devices that a process may use; ``masked`` says that CUDA_VISIBLE_DEVICES chose them."""

    count: int = 0
    masked: bool = False


@dataclass(frozen=True)
class DeviceRequest:
    """What was asked for: by number, by name, or by the configuration (``cpu``, ``cuda``, ``cuda:1``, ``auto``)."""

    configured: str = AUTO
    name: str | None = None
    number: int | None = None


def resolve_device(wanted: DeviceRequest, rank: Rank | None, visible: Visible) -> str:
    """``cpu`` or ``cuda:N``.

    A launcher's local rank decides which CUDA device, then the number asked for, then the name; whether it is CUDA at
    all is decided by what was asked for alone. ``rank`` is None without a launcher. Raises DeviceError when what was
    asked for is not there, or ranks would have to share a device.
    """
    asked = wanted.name if wanted.name is not None else "cuda" if wanted.number is not None else wanted.configured
    kind, _, index = asked.partition(":")
    if kind == AUTO:
        kind = "cuda" if visible.count else "cpu"
    if kind == "cpu":
        return "cpu"
    if kind != "cuda" or not (index.isdecimal() or index == ""):
        raise DeviceError(f"device {asked!r} is not known; there are auto, cpu, cuda and cuda:N")
    if visible.count == 0:
        raise DeviceError(
            f"device {asked} was asked for, but no CUDA device is visible; use cpu, or a machine with one"
        )
    if rank is not None:
        return f"cuda:{_of_rank(rank, visible)}"
    chosen = wanted.number if wanted.number is not None else int(index or 0)
    if not 0 <= chosen < visible.count:
        raise DeviceError(f"device cuda:{chosen} was asked for, but there are only {visible.count} (from cuda:0)")
    return f"cuda:{chosen}"


def visible_devices(mask: str | None) -> Visible:
    """What this process sees; ``mask`` is CUDA_VISIBLE_DEVICES."""
    import torch

    return Visible(torch.cuda.device_count() if torch.cuda.is_available() else 0, masked=mask is not None)


def _of_rank(rank: Rank, visible: Visible) -> int:
    """The local rank's; a process that was given one device of its own by the mask uses that."""
    if visible.count == 1 and (visible.masked or rank.local_world_size == 1):
        return 0
    if rank.local_world_size > visible.count:
        raise DeviceError(
            f"{rank.local_world_size} ranks on this machine, but only {visible.count} CUDA devices; "
            f"use --nproc_per_node={visible.count}, or device cpu"
        )
    return rank.local_rank
