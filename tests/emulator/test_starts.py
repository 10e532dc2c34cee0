"""Groups of episodes that do not start alike are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from image_files import encoded
from PIL import Image

from digirl_dist.emulator.starts import start_alike, unlike_starts
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def picture(shade: int, level: int = 1) -> bytes:
    return encoded(Image.fromarray(np.full((8, 8, 3), shade, np.uint8)), compress_level=level)


def episode(start: Observation, task: str = "t", seed: int = 7, worker: str = "w1", action: Any = 0) -> Trajectory:
    steps = [Step(start, action, -1.0, 0.0, True, False)]
    return Trajectory(Ticket(0, 0, Task(task), seed, 0), "e", worker, 0, steps, start, False)


def numbers(*values: float) -> Observation:
    return Observation(vector=np.array(values, np.float32))


def test_seeds_that_are_ignored_are_named_with_task_seed_and_workers() -> None:
    found = unlike_starts([episode(numbers(1, 2)), episode(numbers(3, 2), seed=8), episode(numbers(1, 5), worker="w2")])
    assert found["t"].startswith("two episodes of seed 7 started differently (on w1 and w2); reset must draw from")


def test_groups_that_start_alike_are_silent() -> None:
    """Other tasks, other seeds, and numbers that two kinds of processors compute otherwise."""
    rounded = numbers(1.0, 2.0 + 1e-6)
    assert unlike_starts([episode(numbers(1, 2)), episode(rounded), episode(numbers(9, 9), task="u")]) == {}
    assert unlike_starts([]) == {}


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (Observation("a", picture(5)), True),
        (Observation("a", picture(5, level=9)), True),
        (Observation("a", picture(6)), False),
        (Observation("b", picture(5)), False),
        (Observation("a", picture(5), np.zeros(1, np.float32)), False),
        (Observation("a", b"no picture"), True),
    ],
)
def test_pictures_are_compared_by_pixels(other: Observation, alike: bool) -> None:
    assert start_alike(Observation("a", picture(5)), other) is alike


def test_screens_that_are_not_steady_may_show_another_minute() -> None:
    first, later = Observation("a", picture(5)), Observation("a", picture(6))
    assert start_alike(first, later, steady=False) and not start_alike(first, Observation("b"), steady=False)
    assert unlike_starts([episode(first), episode(later)]).keys() == {"t"}
    assert unlike_starts([episode(first), episode(later)], steady=False) == {}
