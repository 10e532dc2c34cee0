"""Where a policy lives that acts on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_classes import Coin, Counter

from digirl_dist.agent.placement import Placed
from digirl_dist.assembly.parts import placed
from digirl_dist.errors import DeviceError
from digirl_dist.parallel import compute_device
from digirl_dist.parallel.compute_device import Visible
from digirl_dist.settings import configuration

ROOT = Path(__file__).resolve().parents[2]


def where(monkeypatch: pytest.MonkeyPatch, visible: int, *words: str) -> str:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(compute_device, "visible_devices", lambda mask: Visible(visible))
    agent = placed(
        configuration.load("config/multimachine", "host", ["parallel=single", *words]), lambda: Coin(Counter.spec)
    )
    assert isinstance(agent, Placed)
    return agent.device


def test_it_acts_on_the_gpu_where_there_is_one_and_where_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert where(monkeypatch, 1) == "cuda:0" and where(monkeypatch, 0) == "cpu"
    assert where(monkeypatch, 2, "trainer.device=cuda:1") == "cuda:1"
    assert where(monkeypatch, 2, "trainer.device=cpu") == "cpu"
    with pytest.raises(DeviceError, match="no CUDA device is visible"):
        where(monkeypatch, 0, "trainer.device=cuda")
