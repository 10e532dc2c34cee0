"""``emulator=custom``: what a class of the user's lacks or answers wrongly is told before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from user_classes import Counter

from digirl_dist.emulator import BoxActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.emulator.plugins.custom import CustomEmulatorSettings
from digirl_dist.emulator.plugins.gymnasium import GymnasiumSettings
from digirl_dist.errors import SettingsError
from digirl_dist.tasks import Task


def custom(kind: type) -> CustomEmulatorSettings:
    globals()[kind.__name__] = kind
    return CustomEmulatorSettings(entry_point=f"{__name__}:{kind.__name__}")


@pytest.mark.parametrize("answer", [None, [], ["light"], "light"])
def test_tasks_that_are_none_are_refused(answer: Any) -> None:
    class Wrong(Counter):
        @staticmethod
        def tasks(task_set: str, split: str) -> Any:
            return answer

    with pytest.raises(SettingsError, match=r"Wrong.tasks\('default', 'train'\) returned .*, not a list of Task"):
        custom(Wrong).tasks("default", "train")


def test_tasks_that_raise_are_told_with_their_line() -> None:
    class Broken(Counter):
        @staticmethod
        def tasks(task_set: str, split: str) -> Any:
            return {}[task_set]

    with pytest.raises(SettingsError, match=r"Broken.tasks: KeyError: 'default' \(at .*test_custom.py:\d+ in tasks\)"):
        custom(Broken).tasks("default", "train")


def test_tasks_that_cannot_be_asked_for_on_the_class_are_refused() -> None:
    class Bound(Counter):
        def tasks(self, task_set: str, split: str) -> Any:  # type: ignore[override]
            return [Task("light")]

    with pytest.raises(SettingsError, match=r"Bound.tasks is called on the class with .*, and cannot be: missing"):
        custom(Bound).tasks("default", "train")


def test_a_class_without_a_method_is_refused() -> None:
    class Half:
        spec, tasks, reset = Counter.spec, Counter.tasks, Counter.reset

    said = r"Half: lacks step\(action: Json\) -> Transition and close\(\) -> None, which an emulator's class must have$"
    with pytest.raises(SettingsError, match=said):
        custom(Half).build()


def test_all_that_is_wrong_with_a_class_is_said_at_once() -> None:
    class Wrong:
        spec = "two actions"
        reset = Counter.reset

    said = r"lacks tasks\(task_set: str, split: str\) -> Sequence\[Task\] and step.* and close.*; its spec is 'two"
    with pytest.raises(SettingsError, match=said):
        custom(Wrong).build()


def test_an_environment_of_gymnasium_is_told_from_a_device() -> None:
    class Env(gymnasium.Env[Any, Any]):
        pass

    with pytest.raises(SettingsError, match="Env is an environment of Gymnasium: choose emulator=gymnasium"):
        custom(Env).build()
    globals()["Env"] = Counter
    with pytest.raises(SettingsError, match="Env has an EmulatorSpec: choose emulator=custom"):
        GymnasiumSettings(entry_point=f"{__name__}:Env").build()


def test_a_spec_that_promises_labels_needs_the_method() -> None:
    class Nameless(Counter):
        spec = replace(Counter.spec, labels=True)

    with pytest.raises(SettingsError, match=r"Nameless: its spec has labels=True, and it lacks labels\(\)"):
        custom(Nameless).build()


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (lambda: DiscreteActions(0), r"DiscreteActions.n cannot be 0: Expected `int` >= 1"),
        (lambda: BoxActions(0.0, 1.0), r"BoxActions.low cannot be 0.0: Expected `array`"),  # type: ignore[arg-type]
        (lambda: BoxActions((0.0, 0.0), (1.0,)), "must have a high for each low"),
        (lambda: BoxActions((1.0,), (0.0,)), "none below it"),
        (lambda: ProductActions((ProductActions(()),)), r"ProductActions.parts cannot be"),  # type: ignore[arg-type]
        (lambda: EmulatorSpec(2), r"EmulatorSpec.actions cannot be 2"),  # type: ignore[arg-type]
        (lambda: replace(Counter.spec, image_size=(16, 16, 3)), r"image_size cannot be .* of length 2"),  # type: ignore[arg-type]
        (lambda: replace(Counter.spec, longest=0), r"EmulatorSpec.longest cannot be 0"),
    ],
)
def test_a_description_that_is_none_is_refused_where_it_is_made(described: Callable[[], Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        described()


def test_numbers_and_arrays_of_numpy_and_lists_describe_an_emulator() -> None:
    n: Any = np.int64(2)
    box: Any = BoxActions(np.zeros(1, np.float32), [1])  # type: ignore[arg-type]
    parts: Any = [DiscreteActions(n), box]
    spec = EmulatorSpec(ProductActions(parts), n, image_size=[n, 3])  # type: ignore[arg-type]
    assert repr(spec) == repr(
        EmulatorSpec(ProductActions((DiscreteActions(2), BoxActions((0.0,), (1.0,)))), 2, image_size=(2, 3))
    )


def test_needs_that_are_none_are_refused() -> None:
    class Greedy(Counter):
        needs: ClassVar[Any] = {"memory_mib": 3}

    with pytest.raises(SettingsError, match="Greedy: its needs are .* and no digirl_dist.capacity.Needs"):
        custom(Greedy).build()
