"""Every agent with every emulator and algorithm: what does not fit is refused before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from digirl_dist import Fleet
from digirl_dist.api.training import compose
from digirl_dist.assembly.parts import agent_plugin, build_device
from digirl_dist.assembly.validate import refuse_before_start
from digirl_dist.errors import SettingsError
from digirl_dist.settings import Settings
from digirl_dist.settings.plugins import AGENT, ALGORITHM, EMULATOR

SCREENS = {"autoui", "custom", "device", "endpoint", "vlm"}
SPACES = {"custom", "generic"}
FITTING = {
    "android": SCREENS,
    "phone": SCREENS,
    "miniwob": SCREENS,
    "gymnasium": SPACES,
    "rehearsal": SPACES,
}
NEEDED = {
    "android": {"avd": "any"},
    "autoui": {"model": "folder"},
    "custom": {"entry_point": "tests.user_classes:Coin"},
    "endpoint": {"model": "name"},
    "vlm": {"model": "name"},
    "gymnasium": {"id": "CartPole-v1"},
}


@pytest.fixture(scope="module")
def base() -> Settings:
    return compose("host", {"parallel": "single"})


def chosen(base: Settings, folder: Path, agent: str, emulator: str, **others: Any) -> Settings:
    parts = {
        kind.name: kind.settings(name)(**NEEDED.get(name, {})) for kind, name in ((AGENT, agent), (EMULATOR, emulator))
    }
    return replace(base, save_path=str(folder), **parts, **others)


@pytest.mark.parametrize("emulator", FITTING)
@pytest.mark.parametrize("agent", AGENT.names())
def test_an_agent_for_other_emulators_is_refused_naming_both_and_what_fits(
    base: Settings, tmp_path: Path, agent: str, emulator: str
) -> None:
    settings = chosen(base, tmp_path, agent, emulator)
    if agent not in FITTING[emulator]:
        with pytest.raises(SettingsError, match=f"agent={agent} is made for .* emulator={emulator} has") as refused:
            build_device(settings, settings.emulator)
        named = str(refused.value).split("use agent=")[1].split(" or ")
        assert set(named) == FITTING[emulator]
    else:
        device = build_device(settings, settings.emulator)
        if agent in ("device", "generic"):
            assert agent_plugin(settings).build(device.spec)().feature_size > 0


@pytest.mark.parametrize("algorithm", ALGORITHM.names())
@pytest.mark.parametrize(("agent", "emulator"), [("device", "phone"), ("generic", "gymnasium")])
def test_every_algorithm_trains_every_agent_that_fits(
    base: Settings, tmp_path: Path, agent: str, emulator: str, algorithm: str
) -> None:
    refuse_before_start(chosen(base, tmp_path, agent, emulator, train_algorithm=algorithm), None)


def test_a_fleet_takes_the_agent_of_its_policy(tmp_path: Path) -> None:
    for emulator in ({"name": "custom", "entry_point": "tests.user_classes:Counter"}, {"name": "phone"}):
        assert Fleet.inline(emulator=emulator, save_path=str(tmp_path)).tasks


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"agent": "autoui", "agent.model": "/tmp"}, "is for agent=device, vlm and endpoint"),
        ({"agent": "vlm", "agent.model": "name"}, "needs agent.labels=true"),
        ({"agent": "device", "agent.labels": False}, "needs agent.labels=true"),
    ],
)
def test_names_of_what_is_on_the_screen_that_nothing_reads_are_refused(agent: dict[str, Any], said: str) -> None:
    told = {"parallel": "single", "emulator": "android", "emulator.avd": "any", "emulator.labels": True, **agent}
    with pytest.raises(SettingsError, match=f"emulator.labels=true {said}"):
        refuse_before_start(compose("host", told), None)
