"""Where a screen shows what an instruction names, and what an untrained policy makes of it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from digirl_dist.agent.device.planes import aimed, named_places
from digirl_dist.agent.device.policy import DevicePolicy
from digirl_dist.agent.device.touch import TouchGrid
from digirl_dist.emulator import DeviceActions, EmulatorSpec, Label
from digirl_dist.emulator.remembered import Memory, told
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.settings import DeviceAgentSettings
from digirl_dist.trajectory import Observation

GRID = TouchGrid(4, 4)
SPEC = EmulatorSpec(DeviceActions(("tap", "type", "enter")), image_size=(160, 160), labels=True)
UPPER = Label("Ok", "button", 0.0, 0.0, 0.5, 0.25)
LOWER = Label("ok", "button", 0.0, 0.5, 0.5, 0.75)
FIELD = Label("", "textbox", 0.5, 0.75, 1.0, 1.0)


def planes(instruction: str, *labels: Label, memories: Sequence[Memory] = ()) -> np.ndarray:
    """How much each cell is named, shares words, is named next, and takes text: [4, 4, 4]."""
    return named_places([instruction], [labels], [memories], GRID)[0].numpy()


def values(instruction: str, label: Label, *others: Label, memories: Sequence[Memory] = ()) -> list[float]:
    """Those of the cells of one label."""
    down, right = int(label.top * 4), int(label.left * 4)
    found: list[float] = planes(instruction, label, *others, memories=memories)[:, down, right].tolist()
    return found


def test_a_label_counts_in_the_cells_whose_middle_it_covers() -> None:
    named = planes('Click "Ok"', UPPER)[0]
    assert named[0, :2].tolist() == [1, 1] and named.sum() == 2
    edges = Label("Ok", "button", 0.125, 0.125, 0.375, 0.375)
    assert np.argwhere(planes('Click "Ok"', edges)[0]).tolist() == [[0, 0]], (
        "its right and lower edges are no part of it"
    )
    narrow = Label("Ok", "button", 0.3, 0.3, 0.31, 0.31)
    assert planes('Click "Ok"', narrow)[0, 1, 1] == 1, "none has its middle there: the cell around it"
    outside = Label("Ok", "button", 1.5, 2.0, 1.6, 3.0)
    assert planes('Click "Ok"', outside).sum() == 0


@pytest.mark.parametrize(
    ("instruction", "label", "expected"),
    [
        ('Click on the "Ok" button.', UPPER, [1, 1, 1, 0]),
        ('Click on the "Ok" button.', LOWER, [0.5, 1, 1, 0]),
        ("Click the button.", Label("Click Me!", "button", 0, 0, 1, 1), [0, 2 / 3, 0, 0]),
        ('Click "posuere"', Label("posuere,", "", 0, 0, 1, 1), [1, 1, 1, 0]),
        ("Buy books", Label("book", "", 0, 0, 1, 1), [0, 0, 0, 0]),
        ("Press (a+b)*", Label("(a+b)*", "", 0, 0, 1, 1), [1, 1, 1, 0]),
        ("Focus into the textbox", FIELD, [0, 1, 0, 1]),
        ("", Label("", "", 0, 0, 1, 1), [0, 0, 0, 0]),
    ],
)
def test_how_much_an_instruction_names_a_label(instruction: str, label: Label, expected: list[float]) -> None:
    assert values(instruction, label) == pytest.approx(expected)


def test_what_is_named_next_is_the_first_that_was_not_touched_yet() -> None:
    one, two = Label("ONE", "button", 0, 0, 0.25, 0.25), Label("TWO", "button", 0.5, 0.5, 0.75, 0.75)
    asked = "Click button TWO, then click button ONE."
    assert values(asked, two, one)[2] == 1 and values(asked, one, two)[2] == 0
    touched = [Memory(DeviceAction("tap", 0.6, 0.6), here=False), Memory(DeviceAction("type_at", 0.1, 0.1), here=True)]
    assert values(asked, two, one, memories=touched)[2] == 0, "it had its turn"
    assert values(asked, one, two, memories=touched)[2] == 1, "typing there is no touch of it"


def test_of_names_at_the_same_place_the_next_is_the_one_that_fits_best() -> None:
    assert values('Click "ok"', LOWER, UPPER)[2] == 1 and values('Click "ok"', UPPER, LOWER)[2] == 0
    shorter = Label("Tab", "tab", 0.0, 0.5, 0.5, 0.75)
    longer = Label("Tab #3", "tab", 0.5, 0.5, 1.0, 0.75)
    assert values("Click on Tab #3.", longer, shorter)[2] == 1 and values("Click on Tab #3.", shorter, longer)[2] == 0


def test_planes_move_with_the_picture() -> None:
    still, moved = named_places(["Ok"] * 2, [[UPPER]] * 2, [[]] * 2, GRID, [(0.0, 0.0), (0.5, 0.25)])
    assert torch.equal(moved[:, 2:, 1:], still[:, :2, :3]) and moved[0].sum() == 2


def test_a_tap_is_aimed_at_what_is_named_next_within_its_cell() -> None:
    link = Label("museum", "link", 0.30, 0.27, 0.90, 0.32)

    def aim(cell: int, *labels: Label, instruction: str = 'Click "museum"') -> tuple[float, float] | None:
        return aimed(instruction, labels, [], GRID, cell)

    assert aim(5, UPPER, link) == pytest.approx((0.4, 0.295)), "the part of it that lies in this cell"
    assert aim(6, UPPER, link) == pytest.approx((0.625, 0.295))
    assert aim(1, UPPER, link) is None and aim(9, UPPER, link) is None, "the cells above and below have no part of it"
    assert aim(5, UPPER, link, instruction='Click "Ok"') is None, "something else is named"


def observed(instruction: str, *labels: Label) -> Observation:
    image = io.BytesIO()
    Image.new("RGB", (160, 160), "white").save(image, "png")
    return Observation(told(instruction, labels=labels), image.getvalue())


def policy(**settings: object) -> DevicePolicy:
    torch.manual_seed(0)
    return DeviceAgentSettings(**settings).build(SPEC)().eval()  # type: ignore[arg-type]


def share_of(agent: DevicePolicy, seen: Observation, label: Label) -> float:
    """How likely a tap lies on a label."""
    (found,) = agent.probabilities([seen])
    cells = np.array(found.cells)
    rows, columns = cells.shape
    down, right = slice(round(label.top * rows), round(label.bottom * rows)), slice(0, round(label.right * columns))
    return float(cells[down, right].sum())


def test_an_untrained_policy_prefers_what_the_instruction_names() -> None:
    seen = observed('Click on the "Ok" button.', UPPER, LOWER)
    assert share_of(policy(), seen, UPPER) > 0.5 > 4 * share_of(policy(labels=False), seen, UPPER)
    assert share_of(policy(), seen, UPPER) > 2 * share_of(policy(), seen, LOWER), "the same letters count for more"


def test_a_policy_without_labels_is_the_one_of_an_emulator_without_them() -> None:
    torch.manual_seed(0)
    plain = DeviceAgentSettings().build(EmulatorSpec(SPEC.actions, image_size=SPEC.image_size))()
    blind = policy(labels=False)
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), blind.parameters(), strict=True))
    assert set(plain.state_dict()) == set(blind.state_dict()) < set(policy().state_dict())


@pytest.mark.parametrize("shift", [0, 4])
def test_the_probability_of_an_action_is_the_one_that_it_was_drawn_with(shift: int) -> None:
    agent = policy(shift=shift)
    submit = Label("Submit", "button", 0.3, 0.42, 0.7, 0.46)
    seen = [observed('Enter "tea" into the textbox and press Submit', FIELD, submit)] * 32
    with torch.no_grad():
        found = agent.act(seen, [np.random.default_rng(seed) for seed in range(32)])
        again = agent.log_prob(seen, [each.action for each in found])
    assert {each.action["type"] for each in found} >= {"tap", "type_at"}
    assert any(each.action.get("y") == pytest.approx(0.44) for each in found), "its height is no cell's middle"
    assert np.allclose([each.log_prob for each in found], again.numpy(), atol=1e-5)
    agent.train()
    assert agent.log_prob(seen, [each.action for each in found]).isfinite().all()
