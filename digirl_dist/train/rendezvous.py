"""Joins the ranks of a launch: by torchrun and PyTorch, or by the JAX launcher and JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from digirl_dist.errors import SettingsError
from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.rank import Rank, jax_coordinator, launched_rank
from digirl_dist.settings import JaxSettings, Settings, TrainerSettings


@dataclass(frozen=True)
class Rendezvous:
    """The group of ranks, the device on which this rank learns, and the one on which its policy acts."""

    group: Group
    device: str
    acts_on: str


def check_launch(distributed: bool, rank: Rank | None) -> Rank:
    """Returns this process's rank. Raises SettingsError, with the remedy, if ``distributed`` contradicts the launch."""
    if distributed and rank is None:
        raise SettingsError(
            "--distributed was given, but torchrun's RANK, WORLD_SIZE and LOCAL_RANK are not set; "
            "start with torchrun --nproc_per_node=N -m digirl_dist.train … --distributed"
        )
    if not distributed and rank is not None and rank.world_size > 1:
        raise SettingsError(f"the launcher has started {rank.world_size} ranks; add --distributed, or start one")
    return rank or Rank()


def check_trainer(trainer: TrainerSettings, rank: Rank, environ: Mapping[str, str]) -> None:
    """Raises SettingsError if the launcher of the other library has started the ranks."""
    if rank.world_size > 1 and not isinstance(trainer, JaxSettings) and jax_coordinator(environ) is not None:
        raise SettingsError("the ranks were started for JAX; add trainer=jax, or start them with torchrun")


@contextmanager
def join_ranks(settings: Settings, distributed: bool | None = None) -> Iterator[Rendezvous]:
    """Joins the other ranks of the launch, if there are any, and leaves them at the end.

    ``distributed`` says whether several ranks are expected, and must agree with the launch; None accepts either.

    Raises SettingsError for a launch or a device that does not fit, PeerError if ranks do not come.
    """
    launched, trainer = launched_rank(os.environ), settings.trainer
    rank = (launched or Rank()) if distributed is None else check_launch(distributed, launched)
    check_trainer(trainer, rank, os.environ)
    limits = GroupLimits(trainer.start_s, trainer.exchange_s, settings.distributed.gate_s)
    match trainer:
        case JaxSettings():
            from digirl_dist.parallel import jax_group

            with jax_group.joined(rank, trainer.device, limits) as group:
                yield Rendezvous(group, jax_group.device_in_use(), acts_on="cpu")
        case _:
            visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
            device = resolve_device(DeviceRequest(trainer.device), launched, visible)
            with joined(rank, device, limits) as group:
                yield Rendezvous(group, device, acts_on=device)
