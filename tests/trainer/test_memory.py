"""An update that does not fit into a device's memory ends with the remedy; no episode is blamed for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from digirl_dist.agent.placement import Placed
from digirl_dist.errors import DeviceError, TrainingError
from digirl_dist.parallel.compute_device import compute_exactly
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trajectory import Trajectory
from tests.trainer.test_inprocess import Breaks, run

FULL = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB"


class Hungry(Breaks):
    """Cannot learn from more than so many episodes at once."""

    most = 10

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        if len(replay) > self.most:
            raise torch.OutOfMemoryError(FULL)
        return {}


class HungryLater(Hungry):
    """Meets a broken episode first, and has too little memory while that is looked for."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        if len(replay) > self.most + 10:
            raise ValueError("one of them is broken")
        return super().update(fresh, replay)


@pytest.mark.parametrize("kind", [Hungry, HungryLater])
def test_too_little_memory_is_told_with_the_remedy_and_no_episode_is_set_aside(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError,
        match=r"too little memory .*Tried to allocate.*lower rows_at_once.*batch_size.* resumes from .*000000",
    ):
        run(tmp_path, kind, 1)
    assert not Store(tmp_path / "trajectories").refused.all()


class TooLarge(nn.Module):
    def to(self, *arguments: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError(FULL)


def test_an_agent_that_does_not_fit_is_told_before_anything_is_collected() -> None:
    made: Any = TooLarge
    with pytest.raises(DeviceError, match="cuda:0 has too little memory for the agent: CUDA out of memory"):
        Placed(made, "cuda:0")()


@pytest.mark.parametrize(("device", "rounds"), [("cuda:0", False), ("cpu", True)])
def test_convolutions_on_a_gpu_are_not_rounded(device: str, rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    compute_exactly(device)
    assert torch.backends.cudnn.allow_tf32 is rounds
