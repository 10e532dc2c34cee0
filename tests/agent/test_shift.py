"""Shifted pictures keep what is under the tap under the tap."""

from __future__ import annotations

import pytest
import torch

from digirl_dist.agent.device.planes import shifted

HEIGHT, WIDTH = 12, 10


def point(row: int, column: int) -> tuple[float, float]:
    return (column + 0.5) / WIDTH, (row + 0.5) / HEIGHT


def pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, HEIGHT, WIDTH), dtype=torch.uint8)


@pytest.mark.parametrize(("row", "column"), [(6, 5), (0, 0), (HEIGHT - 1, WIDTH - 1)])
def test_the_tap_stays_on_the_pixel_it_was_on(row: int, column: int) -> None:
    before = pictures(64)
    after, shifts = shifted(before, [[point(row, column)]] * 64, most=4)
    places = [(row + round(down * HEIGHT), column + round(right * WIDTH)) for down, right in shifts]
    for index, (y, x) in enumerate(places):
        assert torch.equal(after[index, :, y, x], before[index, :, row, column])
    assert len(set(places)) > 10


def test_shifts_are_at_most_as_long_as_asked_for_and_repeat_the_edge() -> None:
    gradient = torch.arange(HEIGHT, dtype=torch.uint8)[None, None, :, None].expand(256, 3, HEIGHT, WIDTH)
    after, _ = shifted(gradient, [[]] * 256, most=3)
    rows = after[:, 0, :, 0].int()
    shifts = {tuple((row - torch.arange(HEIGHT)).tolist()) for row in rows}
    expected = {tuple(min(max(row - down, 0), HEIGHT - 1) - row for row in range(HEIGHT)) for down in range(-3, 4)}
    assert shifts == expected


def test_both_ends_of_a_drag_stay_on_the_picture() -> None:
    ends = [point(0, 0), point(HEIGHT - 1, WIDTH - 1)]
    assert shifted(pictures(64), [ends] * 64, most=4)[1] == [(0.0, 0.0)] * 64


def test_the_type_of_the_pictures_stays_as_it_is() -> None:
    after, _ = shifted(pictures(2), [[]] * 2, most=2)
    assert after.dtype == torch.uint8 and after.shape == (2, 3, HEIGHT, WIDTH)
