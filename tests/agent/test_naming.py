"""What a policy reads of labels and instructions, and what an untrained one makes of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from image_files import encoded
from PIL import Image
from single_steps import row_of

from digirl_dist.agent.device.batch import labels_of
from digirl_dist.agent.device.policy import DevicePolicy
from digirl_dist.agent.device.reading import WORD_BUCKETS, hashed_words, read, words_of
from digirl_dist.agent.device.touch import Choice, TouchGrid, kinds_of
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.emulator import DeviceActions, EmulatorSpec, Label
from digirl_dist.emulator.remembered import Memory, told
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.settings import ActorSettings, DeviceAgentSettings
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

SPEC = EmulatorSpec(DeviceActions(("tap", "type", "enter", "swipe", "drag")), image_size=(160, 160), labels=True)
UPPER = Label("Ok", "button", 0.0, 0.0, 0.5, 0.25)
LOWER = Label("ok", "button", 0.0, 0.5, 0.5, 0.75)
FIELD = Label("", "textbox", 0.5, 0.75, 1.0, 1.0)
WHOLE = 0.0, 0.0, 1.0, 1.0


def flags(instruction: str, *labels: Label, memories: Sequence[Memory] = ()) -> list[float]:
    """How well the first label is named: if it is next, and anyway; how much it shares, whether it takes text."""
    return read(told(instruction, memories, labels), labels=True).places[0].flags[1:5]


@pytest.mark.parametrize(
    ("instruction", "label", "expected"),
    [
        ('Click on the "Ok" button.', UPPER, [1, 1, 1, 0]),
        ('Click on the "Ok" button.', LOWER, [0.5, 0.5, 1, 0]),
        ("Click the button.", Label("Click Me!", "button", *WHOLE), [0, 0, 2 / 3, 0]),
        ('Click "posuere"', Label("posuere,", "", *WHOLE), [0.75, 0.75, 1, 0]),
        ('Click "et,."', Label("et.", "link", *WHOLE), [0.75, 0.75, 0.5, 0]),
        ('Click "et,."', Label("et,.", "link", *WHOLE), [1, 1, 1, 0]),
        ("Buy books", Label("book", "", *WHOLE), [0, 0, 0, 0]),
        ("Press (a+b)*", Label("(a+b)*", "", *WHOLE), [1, 1, 1, 0]),
        ("Focus into the textbox", FIELD, [0, 0, 1, 1]),
        ("Select 12/05/2016 as the date", Label("5", "link", *WHOLE), [1, 1, 0, 0]),
        ('It starts with "Ha" and ends with "ti".', Label("Haiti", "", *WHOLE), [0, 0, 1, 0]),
        ('It starts with "Ha" and ends with "ti".', Label("Hawaii", "", *WHOLE), [0, 0, 0.5, 0]),
        ('Enter "tea"', Label("tea", "textbox", *WHOLE), [0, 1, 1, 1]),
    ],
)
def test_how_much_an_instruction_names_a_label(instruction: str, label: Label, expected: list[float]) -> None:
    assert flags(instruction, label) == pytest.approx(expected)


def test_what_is_named_next_is_the_first_that_was_not_touched_yet() -> None:
    one, two = Label("ONE", "button", 0, 0, 0.25, 0.25), Label("TWO", "button", 0.5, 0.5, 0.75, 0.75)
    asked = "Click button TWO, then click button ONE."
    assert flags(asked, two, one)[0] == 1 and flags(asked, one, two)[0] == 0
    elsewhere = Memory(DeviceAction("tap", 0.6, 0.6), here=False)
    assert flags(asked, two, one, memories=[elsewhere])[0] == 1, "on that screen something else was there"
    touched = [
        Memory(DeviceAction("tap", 0.9, 0.9), here=False, on="TWO"),
        Memory(DeviceAction("type_at"), True, "ONE"),
    ]
    assert flags(asked, two, one, memories=touched)[0] == 0, "it had its turn, wherever it was"
    assert flags(asked, one, two, memories=touched)[0] == 1, "typing there is no touch of it"
    scrolled = [Memory(DeviceAction("swipe", 0.6, 0.6, 0.6, 0.1), here=True, on="TWO")]
    assert flags(asked, two, one, memories=scrolled)[0] == 1, "it moved what it began on"


def test_a_box_and_its_caption_have_one_turn() -> None:
    box, caption = Label("Tea", "checkbox", 0.0, 0.0, 0.1, 0.1), Label("Tea", "", 0.1, 0.0, 0.5, 0.1)
    touched = [Memory(DeviceAction("tap", 0.05, 0.05), here=False, on="Tea")]
    submit = Label("Submit", "button", 0.0, 0.5, 0.5, 0.6)
    assert flags("Select Tea and click Submit", submit, box, caption, memories=touched)[0] == 1


def test_of_names_at_the_same_place_the_next_is_the_one_that_fits_best() -> None:
    assert flags('Click "ok"', LOWER, UPPER)[0] == 1 and flags('Click "ok"', UPPER, LOWER)[0] == 0
    shorter = Label("Tab", "tab", 0.0, 0.5, 0.5, 0.75)
    longer = Label("Tab #3", "tab", 0.5, 0.5, 1.0, 0.75)
    assert flags("Click on Tab #3.", longer, shorter)[0] == 1 and flags("Click on Tab #3.", shorter, longer)[0] == 0


def test_a_label_is_described_by_its_rank_and_by_what_stands_before_it() -> None:
    icon = Label("", "graphic", *WHOLE)
    rows = [Label("Ann", "", *WHOLE), icon, icon, Label("Bob", "", *WHOLE), icon]
    first, second, third = (read(told("Star Ann", labels=rows), labels=True).places[place].words for place in (1, 2, 4))
    assert set(first) ^ set(second), "one is the first after what is named, the other the second"
    assert set(hashed_words("ann")) < set(read(told("Star Ann", labels=rows), labels=True).places[0].words)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    assert words_of("-3 a-b 4-5") == ["-3", "a", "b", "4", "5"]


def test_a_number_is_described_by_its_parity_and_by_its_rank_among_those_named_alike() -> None:
    names = ["Book for $120", "Odd", "-7", "Book for $99", "8", "9" * 400]
    rows = read(told("Buy", labels=[Label(name, "", *WHOLE) for name in names]), labels=True).places
    dear, odd, seven, cheap, eight, _ = [set(row.words) for row in rows]
    assert bucket("odd number") in seven & cheap and bucket("even number") in eight & dear
    assert bucket("1 are smaller") in dear & eight and bucket("1 are larger") in cheap & seven
    assert bucket("1 are smaller") not in odd | cheap, "only names that differ in numbers alone are compared"
    assert bucket("less than asked") not in cheap, "nothing is asked for"
    assert bucket("before odd number") in odd and bucket("behind even number") in odd


def test_a_number_is_compared_with_the_one_that_is_asked_for() -> None:
    shown = [Label(name, "spinbutton", *WHOLE) for name in ("-3", "4", "$5.10", "$40.00")]
    below, same, *_ = read(told("Select 4 and hit Submit.", labels=shown), labels=True).places
    assert bucket("less than asked") in below.words and bucket("less than asked") not in same.words
    *_, cheap, dear = read(told("Buy when the price is below $5.20.", labels=shown), labels=True).places
    assert bucket("less than asked") in cheap.words and bucket("more than asked") in dear.words


def bucket(description: str) -> int:
    return zlib.crc32(description.encode()) % WORD_BUCKETS


def test_what_can_be_typed_are_quotes_words_and_names_each_once() -> None:
    labels = [Label("Jazz", "", *WHOLE), Label("Ann", "link", *WHOLE), FIELD]
    texts = read(told('Enter "Ann B" at 3:45 PM, by Jo.', labels=labels), labels=True).texts
    assert texts[:3] == ["Ann B", "ann b", "ANN B"] and {"3:45 PM", "Jo", "at", "Jazz", "Ann"} < set(texts)
    assert len(texts) == len(set(texts)) and "" not in texts
    assert read(told('Enter "Ann B" at 3:45 PM.', labels=labels)).texts == ["Ann B"], "by pixels alone only quotes"


def test_words_of_a_longer_text_can_be_typed_and_are_described_by_their_places_in_it() -> None:
    labels = [Label("One fine day, one two 3.", "", *WHOLE), Label("Submit", "button", *WHOLE)]
    found = read(told('Type the 2nd word and press "submit".', labels=labels), labels=True)
    texts = dict(zip(found.texts, found.typeable, strict=True))
    assert {"fine", "day", "one"} < set(texts) and texts["One"] != texts["one"]
    assert {bucket("inner 2"), bucket("inner -5"), bucket("inner as asked")} < set(texts["fine"].words)
    assert bucket("inner as asked") not in texts["day"].words and bucket("inner -1") in texts["3"].words
    assert [texts[name].flags[-1] for name in ("submit", "SUBMIT", "Submit", "fine")] == [1, 1, 1, 0], "it is a button"
    twice = read(told("Go", labels=[Label("a b c d a", "", *WHOLE)]), labels=True)
    assert {bucket("inner 1"), bucket("inner 5")} < set(twice.typeable[twice.texts.index("a")].words)
    held = read(told("Go", labels=[Label("a b c d e", "textbox", *WHOLE)]), labels=True)
    assert held.texts == ["Go", "a b c d e"], "what a field holds is copied as a whole"
    many = read(told("Go", labels=[Label(" ".join(map(str, range(99))), "", *WHOLE)]), labels=True)
    assert len(many.texts) == 26 and "23" in many.texts and "24" not in many.texts


def test_the_rank_of_a_label_is_compared_with_the_numbers_that_are_asked_for() -> None:
    first, second = read(told("Check the 2nd box", labels=[UPPER, LOWER]), labels=True).places
    assert bucket("rank as asked") in second.words and bucket("rank as asked") not in first.words


def test_the_order_of_numbers_in_an_instruction_is_told() -> None:
    one, other = (read(text).words for text in ("Click on (1,-2) twice.", "Click on (-2,1) twice."))
    assert sorted(one[:5]) == sorted(other[:5]) and not set(one[5:]) & set(other[5:])


def test_labels_move_with_the_picture() -> None:
    grid, rows = TouchGrid(4, 4), [read(told("Ok", labels=[UPPER]), labels=True)] * 2
    assert labels_of(rows, grid, [(0.0, 0.0), (0.5, 0.25)]).cells[:, 0].tolist() == [1, 10]


def test_a_control_is_touched_as_one_wherever_it_is_touched_and_a_picture_is_not() -> None:
    grid, button, slider = TouchGrid(4, 4), Label("Ok", "button", 0.0, 0.0, 0.6, 0.3), Label("", "slider", 0, 0.5, 1, 1)
    closed = labels_of([read(told("Ok", labels=[button, slider]), labels=True)], grid).closed
    assert closed[0].nonzero()[:, 0].tolist() == [0, 1], "the cells whose middle is in the button"
    for x, y, place in ((0.1, 0.1, 16), (0.45, 0.2, 16), (0.55, 0.2, 2), (0.1, 0.6, 8), (0.5, 0.75, 17)):
        assert grid.choice({"type": "tap", "x": x, "y": y}, [], [button, slider]).place == place
    huge = [Label("Ok", "button", -1e9, -1e9, 1e9, 1e9)]
    assert set(grid.owners(huge)) == set(range(16)), "and what lies outside the screen costs nothing"


def test_of_two_labels_at_one_point_the_second_is_closed_and_so_is_a_cell() -> None:
    wide, point = Label("a", "", 0.25, 0.25, 0.75, 0.75), Label("b", "", 0.125, 0.125, 0.125, 0.125)
    rows = [read(told("", labels=[wide, wide, point]), labels=True), read("", labels=True)]
    closed = labels_of(rows, TouchGrid(4, 4)).closed
    assert closed[0].nonzero()[:, 0].tolist() == [0, 17], "the middle of the first cell is the label's"
    assert closed[1].nonzero()[:, 0].tolist() == [16, 17, 18], "an observation without labels"


def observed(instruction: str, *labels: Label) -> Observation:
    image = encoded(Image.new("RGB", (160, 160), "white"))
    return Observation(told(instruction, labels=labels), image)


def policy(**settings: object) -> DevicePolicy:
    torch.manual_seed(0)
    return DeviceAgentSettings(**settings).build(SPEC)()  # type: ignore[arg-type]


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
    seen = [observed('Enter "tea" or 7 into the textbox and press Submit', FIELD, submit, submit), observed("Go")] * 64
    with torch.no_grad():
        found = agent.act(seen, [np.random.default_rng(seed) for seed in range(128)])
        again = agent.log_prob(seen, [each.action for each in found])
    assert {each.action["type"] for each in found} >= {"tap", "type_at", "drag", "swipe"}
    assert any(each.action.get("y") == pytest.approx(0.44) for each in found), "its height is no cell's middle"
    assert np.allclose([each.log_prob for each in found], again.numpy(), atol=1e-5)
    agent.train()
    of_fewer_words = agent.log_prob(seen, [each.action for each in found])
    assert of_fewer_words.isfinite().all() and not torch.allclose(of_fewer_words, again, atol=0.01)


def test_who_reads_labels_scrolls_what_lies_at_a_place() -> None:
    grid = TouchGrid(4, 4, kinds_of(["tap", "swipe"], reads=True))
    up = [index for index, kind in enumerate(grid.kinds) if kind.name == "swipe up from a place"]
    action = grid.action(Choice(up[0], grid.cells), [], [UPPER])
    assert action == {"type": "swipe", "x": 0.25, "y": 0.125, "to_x": 0.25, "to_y": 0.0}, "as far as the screen goes"
    assert grid.choice(action, [], [UPPER]) == Choice(up[0], grid.cells)
    assert {kind.name for kind in kinds_of(["tap", "swipe"])} == {kind.name for kind in grid.kinds if not kind.down}


@pytest.mark.parametrize(("labels", "text"), [(True, "shown"), (True, "7"), (False, "tea")])
def test_a_worker_may_type_what_the_policy_can_and_nothing_else(labels: bool, text: str) -> None:
    seen, agent = observed('Enter "tea" or 7', Label("shown", "", *WHOLE)), DeviceAgentSettings(labels=labels)
    action: Json = {"type": "type", "text": text}
    agent.check_action(SPEC, seen, action)
    with pytest.raises(ActionError):
        agent.check_action(SPEC, seen, {**action, "text": "other"})
    if not labels:
        with pytest.raises(ActionError):
            agent.check_action(SPEC, seen, {**action, "text": "shown"})


NAMES = [first + last for first in ("Ab", "Co", "Di", "Fe") for last in ("len", "mo", "ra", "sky", "ti")]


def listed(rng: np.random.Generator, copies: bool) -> tuple[Observation, Json]:
    """A list of five names, each with a value and two icons; what to do with one of them; and how that is done."""
    names, labels = list(rng.choice(NAMES, 5, replace=False)), []
    for row, name in enumerate(names):
        top, bottom = 0.1 + 0.16 * row, 0.15 + 0.16 * row
        labels += [Label(name, "", 0.0, top, 0.4, bottom), Label(f"v{rng.integers(100)}", "", 0.45, top, 0.6, bottom)]
        labels += [Label("", "graphic", left, top, left + 0.05, bottom) for left in (0.7, 0.8)]
    row, icon = int(rng.integers(5)), int(rng.integers(2))
    if copies:
        action = DeviceAction("type_at", *FIELD.middle, text=labels[4 * row + 1].name)
        return observed(f"Enter the value of {names[row]}", *labels, FIELD), action.to_json()
    touched = DeviceAction("tap", *labels[4 * row + 2 + icon].middle)
    return observed(f"{('Star', 'Delete')[icon]} {names[row]}", *labels), touched.to_json()


@pytest.mark.component
@pytest.mark.parametrize("copies", [False, True])
def test_what_stands_beside_a_name_is_learned_from_a_few_examples(copies: bool) -> None:
    """Touching one of its icons, or typing its value elsewhere, of a name that other examples had."""
    rng, agent = np.random.default_rng(0), policy(shift=8)
    examples, others = ([listed(rng, copies) for _ in range(count)] for count in (64, 32))

    def share() -> float:
        with torch.no_grad():
            return float(agent.log_prob(*map(list, zip(*others, strict=True))).exp().mean())

    untrained = share()
    settings = ActorSettings(epochs=20, max_examples=3000, learning_rate=5e-3)
    Imitation(agent, settings, seed=0).fit([row_of(*example) for example in examples])
    assert untrained < 0.05 and share() > 0.6
