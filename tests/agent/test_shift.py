"""Shifted pictures keep what is under the tap under the tap."""

from __future__ import annotations

import pytest
import torch

from digirl_dist.agent.device.planes import shifted
from digirl_dist.emulator.touch_actions import DeviceAction

HEIGHT, WIDTH = 12, 10


def tap(row: int, column: int) -> dict:
    return DeviceAction("tap", (column + 0.5) / WIDTH, (row + 0.5) / HEIGHT).to_json()


def pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, HEIGHT, WIDTH), dtype=torch.uint8)


@pytest.mark.parametrize(("row", "column"), [(6, 5), (0, 0), (HEIGHT - 1, WIDTH - 1)])
def test_the_tap_stays_on_the_pixel_it_was_on(row: int, column: int) -> None:
    before = pictures(64)
    after, taps, shifts = shifted(before, [tap(row, column)] * 64, most=4)
    places = [(int(moved["y"] * HEIGHT), int(moved["x"] * WIDTH)) for moved in taps]
    for index, (y, x) in enumerate(places):
        assert torch.equal(after[index, :, y, x], before[index, :, row, column])
    assert len(set(places)) > 10
    assert [round(column + right * WIDTH) for _, right in shifts] == [x for _, x in places]


def test_shifts_are_at_most_as_long_as_asked_for_and_repeat_the_edge() -> None:
    gradient = torch.arange(HEIGHT, dtype=torch.uint8)[None, None, :, None].expand(256, 3, HEIGHT, WIDTH)
    after, *_ = shifted(gradient, [{"type": "back"}] * 256, most=3)
    rows = after[:, 0, :, 0].int()
    shifts = {tuple((row - torch.arange(HEIGHT)).tolist()) for row in rows}
    expected = {tuple(min(max(row - down, 0), HEIGHT - 1) - row for row in range(HEIGHT)) for down in range(-3, 4)}
    assert shifts == expected


def test_other_actions_and_the_type_of_the_pictures_stay_as_they_are() -> None:
    actions = [DeviceAction("back").to_json(), DeviceAction("type", text="milk").to_json()]
    after, same, _ = shifted(pictures(2), actions, most=2)
    assert same == actions
    assert after.dtype == torch.uint8 and after.shape == (2, 3, HEIGHT, WIDTH)
