"""What every emulator must do, whichever it is."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from digirl_dist.emulator import Emulator, EmulatorSpec
from digirl_dist.emulator.gymnasium import gymnasium_spec
from digirl_dist.emulator.miniwob import SPEC as MINIWOB_SPEC
from digirl_dist.emulator.miniwob import miniwob_tasks
from digirl_dist.emulator.phone import PHONE_SPEC, phone_tasks
from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec, rehearsal_tasks
from digirl_dist.errors import ActionError
from digirl_dist.settings import (
    AndroidWorldSettings,
    GymnasiumSettings,
    MiniwobSettings,
    PhoneSettings,
    RehearsalSettings,
)
from digirl_dist.settings.plugins import values
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json


@dataclass(frozen=True)
class Case:
    """One emulator under the contract. ``ending`` ends an episode when it is repeated often enough."""

    make: Callable[[], Emulator]
    spec: EmulatorSpec
    task: Task
    ending: Json
    unknown: Json


def _cartpole() -> Case:
    settings = GymnasiumSettings(id="CartPole-v1")
    factory = settings.factory()
    return Case(factory, gymnasium_spec(factory), settings.tasks("default", "train")[0], ending=1, unknown=2)


def _miniwob() -> Case:
    settings = MiniwobSettings(task="click-test-2")
    [task] = miniwob_tasks(settings.task)
    unknown = {"type": "tap", "x": 1.5, "y": 0.5}
    return Case(lambda: settings.build().factory(), MINIWOB_SPEC, task, ending={"type": "done"}, unknown=unknown)


def _rehearsal() -> Case:
    settings = RehearsalSettings(reset_s=0, step_s=0, image_size=[12, 8])
    [task] = rehearsal_tasks()
    return Case(
        lambda: RehearsalEmulator(**values(settings)), rehearsal_spec(settings.image_size), task, ending=0, unknown=4
    )


def _phone() -> Case:
    (task, *_) = phone_tasks("easy", "train")
    make = PhoneSettings().build().factory
    return Case(make, PHONE_SPEC, task, ending={"type": "done"}, unknown={"type": "shake"})


@contextmanager
def _android(folder: Path) -> Iterator[Case]:
    """Two devices that show the demo phone, over adb."""
    from emulator.android.phone_shell import as_android
    from emulator.android.sites import RunningPhone, quick

    from digirl_dist.emulator.android.emulator import AndroidEmulator
    from digirl_dist.emulator.android.tasks import android_spec

    (task, *_) = phone_tasks("easy", "train")
    with RunningPhone() as one, RunningPhone() as other:
        settings = quick(folder, serials=[one.serial, other.serial])
        make, unknown = partial(AndroidEmulator, settings), {"type": "shake"}
        yield Case(make, android_spec(settings), as_android(task), ending={"type": "done"}, unknown=unknown)


@contextmanager
def _androidworld(folder: Path) -> Iterator[Case]:
    """Two devices behind adb; the package whose tasks they run is a stand-in."""
    from emulator.android.sites import RunningPhone, quick
    from emulator.androidworld.android_files import AndroidShell, Storage
    from emulator.androidworld.stand_in_package import stand_in_package

    from digirl_dist.emulator.android.tasks import android_spec
    from digirl_dist.emulator.androidworld.emulator import AndroidWorldEmulator

    shells = [AndroidShell(files=Storage(folder / name)) for name in ("one", "other")]
    with stand_in_package(folder), RunningPhone(shells[0]) as one, RunningPhone(shells[1]) as other:
        given = asdict(quick(folder, serials=[one.serial, other.serial])) | {"name": "androidworld"}
        settings = AndroidWorldSettings(**given)
        make, unknown = partial(AndroidWorldEmulator, settings, settings.family), {"type": "shake"}
        yield Case(make, android_spec(settings), Task("NotesCount"), ending={"type": "done"}, unknown=unknown)


CASES = {"gymnasium": _cartpole, "miniwob": _miniwob, "phone": _phone, "rehearsal": _rehearsal}


BEHIND_ADB = {"android": _android, "androidworld": _androidworld}
PARTS = ["miniwob", *BEHIND_ADB]
"""Those that are made of more than Python: a browser, or a phone behind adb."""


@pytest.fixture(
    scope="module",
    params=[
        *(name for name in CASES if name not in PARTS),
        *(pytest.param(part, marks=pytest.mark.component) for part in PARTS),
    ],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    if request.param in BEHIND_ADB:
        request.getfixturevalue("adb_is_installed")
        with BEHIND_ADB[request.param](tmp_path_factory.mktemp(request.param)) as case:
            yield case
        return
    if request.param == "miniwob":
        request.getfixturevalue("chromium_is_installed")
    yield CASES[request.param]()


@pytest.fixture(scope="module")
def emulator(case: Case) -> Iterator[Emulator]:
    """Shared by the tests, as one emulator runs many episodes."""
    emulator = case.make()
    yield emulator
    emulator.close()


def assert_fits(observation: Observation, spec: EmulatorSpec) -> None:
    if spec.image_size is None:
        assert observation.image is None
    else:
        height, width = spec.image_size
        assert observation.image is not None
        picture = Image.open(io.BytesIO(observation.image))
        picture.load()
        assert picture.size == (width, height)
    if spec.vector_size == 0:
        assert observation.vector is None
    else:
        assert observation.vector is not None
        assert observation.vector.shape == (spec.vector_size,)
        assert observation.vector.dtype == np.float32


def assert_same(one: Observation, other: Observation) -> None:
    assert one.text == other.text
    assert one.image == other.image
    np.testing.assert_array_equal(one.vector, other.vector)


def run_to_the_end(emulator: Emulator, ending: Json) -> Transition:
    for _ in range(1000):
        transition = emulator.step(ending)
        if transition.ended:
            return transition
    raise AssertionError("the episode did not end")


def test_the_first_observation_fits_the_spec(case: Case, emulator: Emulator) -> None:
    assert_fits(emulator.reset(case.task, seed=1), case.spec)


def test_the_same_task_and_seed_give_the_same_first_observation(case: Case, emulator: Emulator) -> None:
    first = emulator.reset(case.task, seed=5)
    emulator.step(case.ending)
    emulator.reset(case.task, seed=6)
    assert_same(emulator.reset(case.task, seed=5), first)


def test_a_second_emulator_starts_the_same_episode(case: Case, emulator: Emulator) -> None:
    second = case.make()
    try:
        assert_same(second.reset(case.task, seed=5), emulator.reset(case.task, seed=5))
    finally:
        second.close()


def test_another_seed_gives_another_episode(case: Case, emulator: Emulator) -> None:
    seen = {_fingerprint(emulator.reset(case.task, seed)) for seed in range(4)}
    assert len(seen) > 1


def _fingerprint(observation: Observation) -> tuple[str, bytes | None, bytes | None]:
    vector = observation.vector
    return observation.text, observation.image, None if vector is None else vector.tobytes()


def test_a_step_answers_with_plain_floats_and_bools(case: Case, emulator: Emulator) -> None:
    emulator.reset(case.task, seed=1)
    transition = emulator.step(case.ending)
    assert_fits(transition.observation, case.spec)
    assert type(transition.reward) is float
    assert {type(flag) for flag in (transition.terminated, transition.truncated, transition.success)} == {bool}


def test_an_unknown_action_is_refused_and_the_episode_goes_on(case: Case, emulator: Emulator) -> None:
    emulator.reset(case.task, seed=1)
    for wrong in (case.unknown, None, "tap", {}, [], float("nan")):
        with pytest.raises(ActionError):
            emulator.step(wrong)
    assert_fits(emulator.step(case.ending).observation, case.spec)


def test_after_an_episode_comes_another(case: Case, emulator: Emulator) -> None:
    first = emulator.reset(case.task, seed=1)
    assert_fits(run_to_the_end(emulator, case.ending).observation, case.spec)
    assert_same(emulator.reset(case.task, seed=1), first)
    assert run_to_the_end(emulator, case.ending).ended


def test_closing_twice_is_harmless(case: Case) -> None:
    emulator = case.make()
    emulator.reset(case.task, seed=1)
    emulator.close()
    emulator.close()


def test_an_emulator_that_was_never_used_can_be_closed(case: Case) -> None:
    case.make().close()
