"""Resolves the device on which a process computes, from what was requested and what is visible."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from digirl_dist.errors import DeviceError
from digirl_dist.parallel.rank import Rank

AUTO = "auto"
"""CUDA if any is visible, otherwise the CPU."""


@dataclass(frozen=True)
class Visible:
    """The CUDA devices that a process may use; ``masked`` if CUDA_VISIBLE_DEVICES limits them."""

    count: int = 0
    masked: bool = False


@dataclass(frozen=True)
class DeviceRequest:
    """A request for a device: by number, by name, or by the configuration (``cpu``, ``cuda``, ``cuda:1``, ``auto``)."""

    configured: str = AUTO
    name: str | None = None
    number: int | None = None


def resolve_device(wanted: DeviceRequest, rank: Rank | None, visible: Visible) -> str:
    """Returns ``cpu`` or ``cuda:N``.

    The request alone decides between CPU and CUDA. Which CUDA device it is follows from the launcher's local rank;
    without a launcher (``rank`` is None) from the requested number, then from the name. Raises DeviceError if the
    device is not visible, or if ranks would have to share one.
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
    """Counts the CUDA devices of this process; ``mask`` is the value of CUDA_VISIBLE_DEVICES."""
    import torch

    return Visible(torch.cuda.device_count() if torch.cuda.is_available() else 0, masked=mask is not None)


def compute_exactly(device: str) -> None:
    """Makes this process compute convolutions on ``device`` in float32, as CPUs do.

    cuDNN would round their inputs to TF32, which has ten bits of a mantissa. Log-probabilities then differ by percents
    between a worker's CPU, which acted, and the host's GPU, which learns, and so do the ratios in between.
    """
    if device.startswith("cuda"):
        import torch

        torch.backends.cudnn.allow_tf32 = False


def device_failed(error: Exception) -> bool:
    """Returns whether an accelerator failed, which then refuses whatever else this process asks of it.

    torch tells from version 2.8 on.
    """
    torch = sys.modules.get("torch")  # not imported where an agent does without
    return isinstance(error.__cause__ or error, getattr(torch, "AcceleratorError", ()))


def _of_rank(rank: Rank, visible: Visible) -> int:
    """Returns the local rank, or 0 for a process whose mask shows it one device of its own."""
    if visible.count == 1 and (visible.masked or rank.local_world_size == 1):
        return 0
    if rank.local_world_size > visible.count:
        devices = "CUDA devices" if visible.count > 1 else "CUDA device"
        raise DeviceError(
            f"{rank.local_world_size} ranks on this machine, but only {visible.count} {devices}; "
            f"use --nproc_per_node={visible.count}, or device cpu"
        )
    return rank.local_rank
