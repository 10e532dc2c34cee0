"""The rehearsal's times, lengths and faults are those of its settings."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_tasks
from digirl_dist.errors import EmulatorCrashed, EmulatorError, EmulatorHung, SettingsError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.slot import Slot
from digirl_dist.settings import RehearsalSettings
from digirl_dist.settings.plugins import values
from digirl_dist.trajectory import Transition
from digirl_dist.user_code.packing import pack

[TASK] = rehearsal_tasks()


def instant(**options: Any) -> RehearsalSettings:
    return RehearsalSettings(reset_s=0, step_s=0, **options)


def episode(emulator: RehearsalEmulator, seed: int, action: int | None = None) -> list[Transition]:
    """One episode with ``action``, or with the right one."""
    seen = emulator.reset(TASK, seed)
    transitions: list[Transition] = []
    while not transitions or not transitions[-1].ended:
        assert seen.vector is not None
        transitions.append(emulator.step(int(np.argmax(seen.vector)) if action is None else action))
        seen = transitions[-1].observation
    return transitions


def test_right_actions_succeed_and_constant_ones_hardly_ever() -> None:
    emulator = RehearsalEmulator(**values(instant()))
    right = [episode(emulator, seed) for seed in range(50)]
    assert all(one[-1].success and sum(step.reward for step in one) == pytest.approx(1) for one in right)
    constant = [episode(emulator, seed, action=0)[-1].success for seed in range(50)]
    assert sum(constant) < 10


@pytest.mark.component
def test_lengths_have_the_median_and_spread_of_the_settings() -> None:
    emulator = RehearsalEmulator(**values(instant(steps=20, steps_sigma=0.5)))
    logs = [np.log(len(episode(emulator, seed))) for seed in range(300)]
    assert median(logs) == pytest.approx(np.log(20), abs=0.15)
    assert np.std(logs) == pytest.approx(0.5, abs=0.1)


def test_no_episode_is_longer_than_it_says_and_a_worker_that_brings_one_is_refused() -> None:
    settings = instant(steps=2, steps_sigma=0.5)
    spec = settings.build().spec
    assert spec.longest == round(2 * np.exp(3)) and EpisodeGuard(spec=spec, max_steps=99).most_steps == spec.longest
    emulator = RehearsalEmulator(**values(settings))
    assert max(len(episode(emulator, seed)) for seed in range(2000)) <= spec.longest
    assert instant(steps=7, steps_sigma=0).build().spec.longest == 7


def test_times_have_the_median_and_spread_of_the_settings() -> None:
    slept: list[float] = []
    settings = RehearsalSettings(reset_s=2, reset_sigma=0, step_s=3, step_sigma=0.5)
    emulator = RehearsalEmulator(**values(settings), sleep=slept.append)
    slept.clear()
    for seed in range(60):
        before = len(slept)
        episode(emulator, seed)
        assert slept[before] == 2
    steps = np.log([seconds for seconds in slept if seconds != 2])
    assert np.median(steps) == pytest.approx(np.log(3), abs=0.1)
    assert np.std(steps) == pytest.approx(0.5, abs=0.07)


def test_a_slow_machine_takes_longer_for_the_same_episode() -> None:
    spent = []
    for slowness in (1.0, 4.0):
        emulator = RehearsalEmulator(**values(RehearsalSettings(reset_s=0.02, step_s=0.01, steps=5, slowness=slowness)))
        started = time.monotonic()
        length = len(episode(emulator, 7))
        spent.append((length, time.monotonic() - started))
    assert spent[0][0] == spent[1][0]
    assert spent[1][1] > 2.5 * spent[0][1]


def test_screenshots_do_not_compress() -> None:
    import zlib

    image = RehearsalEmulator(**values(instant(image_size=[120, 80]))).reset(TASK, 1).image
    assert image is not None and len(zlib.compress(image, 9)) > 120 * 80 * 3


@pytest.mark.component
@pytest.mark.parametrize(
    ("fault", "error"), [("hang_rate", EmulatorHung), ("crash_rate", EmulatorCrashed), ("error_rate", EmulatorError)]
)
def test_a_fault_ends_the_emulator_in_its_own_way(tmp_path: Path, fault: str, error: type[Exception]) -> None:
    packed = tmp_path / "emulator"
    packed.write_bytes(pack(partial(RehearsalEmulator, **values(instant(**{fault: 1.0})))))
    slot = Slot(0, packed, SlotLimits(boot_s=30, reset_s=10, step_s=0.5), tmp_path / "log")
    slot.start()
    try:
        slot.wait_for_answer()
        slot.reset(TASK, 1)
        slot.wait_for_answer()
        slot.step(0)
        with pytest.raises(error):
            slot.wait_for_answer()
    finally:
        slot.close()
        slot.wait(time.monotonic() + 10)


def failing(emulator: RehearsalEmulator, seeds: range) -> set[int]:
    failed = set()
    for seed in seeds:
        try:
            episode(emulator, seed)
        except EmulatorError:
            failed.add(seed)
    return failed


@pytest.mark.component
def test_faults_strike_as_often_as_said_and_another_process_has_other_luck() -> None:
    settings = instant(error_rate=0.05, steps=1, steps_sigma=0)
    first, second = (failing(RehearsalEmulator(**values(settings)), range(1000)) for _ in range(2))
    assert 20 < len(first) < 90
    assert first != second


@pytest.mark.component
def test_planned_faults_follow_from_the_seed_and_strike_once(tmp_path: Path) -> None:
    plans = []
    for name in ("one", "two"):
        settings = instant(error_rate=0.01, faults_once_in=str(tmp_path / name))
        plans.append(failing(RehearsalEmulator(**values(settings)), range(100)))
        again = RehearsalEmulator(**values(settings))
        assert not failing(again, range(100)) - plans[-1], "an episode without a planned fault failed"
        while failing(again, range(100)):
            pass  # an episode may have several faults in store, each of which strikes once
    assert plans[0] == plans[1] and plans[0]


@pytest.mark.parametrize("options", [{"image_size": [5]}, {"hang_rate": 0.6, "crash_rate": 0.6}])
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        RehearsalSettings(**options).build()
