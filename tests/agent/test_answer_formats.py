"""Answers in the formats that published models document: read as they are meant, or counted as unread."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from digirl_dist.agent.answers import Coordinates, Shown, action_of, read
from digirl_dist.emulator.touch_actions import SAID, UNREAD, DeviceAction
from digirl_dist.errors import ActionError

SHOWN = Shown((800, 400), [(0.25, 0.5)])
ANSWERS = 100
"""Of each format."""
THOUGHTS = (
    "The 3rd item, at 0.5 of the width, is what I need. I will click it and then go back.",
    "Step 2 of 4: scroll down until «Größe 42» shows; 12:30 is not it.",
    "用户想要打开设置。",
    "I have to type the name; the list has 10 entries (5 are hidden)",
)
TEXTS = (
    "pizza",
    "two words",
    'say "hi"',
    "it's",
    "a\\b",
    "line\nbreak",
    "Größe „M“",
    "日本語",
    "😀",
    "42",
    "{}",
    "[x]",
    "tap(1, 2)",
)


@dataclass(frozen=True)
class Format:
    """How one model writes: places of its unit, and an answer for each kind of action that it knows."""

    coordinates: Coordinates
    writes: dict[str, Callable[[Random], tuple[str, DeviceAction | None]]]
    thinks: Callable[[str, str], str]
    """Puts a thought before an action."""


def place(random: Random, coordinates: Coordinates) -> tuple[str, str, float, float]:
    """A place as it is written, and in shares."""
    across, down = random.randrange(1, 100) / 100, random.randrange(1, 100) / 100
    wide, high = {"shares": (1, 1), "thousandths": (1000, 1000), "pixels": (400, 800)}[coordinates.value]
    x, y = (f"{share * most:g}" for share, most in ((across, wide), (down, high)))
    return x, y, across, down


def call(text: str) -> str:
    """A text as it stands in a call, with the escapes that UI-TARS names."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"').replace("\n", "\\n")
    return f"'{escaped}'"


def tap(coordinates: Coordinates, form: str) -> Callable[[Random], tuple[str, DeviceAction]]:
    def write(random: Random) -> tuple[str, DeviceAction]:
        x, y, across, down = place(random, coordinates)
        return form.replace("X", x).replace("Y", y), DeviceAction("tap", across, down)

    return write


def box(form: str) -> Callable[[Random], tuple[str, DeviceAction]]:
    """A box of three-digit thousandths, whose centre is meant."""

    def write(random: Random) -> tuple[str, DeviceAction]:
        left, top = random.randrange(0, 900), random.randrange(0, 900)
        corners = f"[[{left:03},{top:03},{left + 90:03},{top + 60:03}]]"
        return form.replace("BOX", corners), DeviceAction("tap", (left + 45) / 1000, (top + 30) / 1000)

    return write


def swipe(coordinates: Coordinates, form: str) -> Callable[[Random], tuple[str, DeviceAction]]:
    def write(random: Random) -> tuple[str, DeviceAction]:
        x, y, across, down = place(random, coordinates)
        to_x, to_y, to_across, to_down = place(random, coordinates)
        text = form.replace("X2", to_x).replace("Y2", to_y).replace("X", x).replace("Y", y)
        return text, DeviceAction("swipe", across, down, to_across, to_down)

    return write


def text(form: str, quote: Callable[[str], str], kind: str = "type") -> Callable[[Random], tuple[str, DeviceAction]]:
    def write(random: Random) -> tuple[str, DeviceAction]:
        written = random.choice(TEXTS)
        return form.replace("TEXT", quote(written)), DeviceAction(kind, text=written)

    return write


def scroll(form: str, is_finger: bool = False) -> Callable[[Random], tuple[str, DeviceAction]]:
    ways = {"down": (0.5, 0.75, 0.5, 0.25), "up": (0.5, 0.25, 0.5, 0.75)}
    ways |= {"right": (0.8, 0.5, 0.2, 0.5), "left": (0.2, 0.5, 0.8, 0.5)}
    opposite = {"down": "up", "up": "down", "left": "right", "right": "left"}

    def write(random: Random) -> tuple[str, DeviceAction]:
        way = random.choice([*ways])
        said = form.replace("WAY", way).replace("UPPER", way.upper())
        return said, DeviceAction("swipe", *ways[opposite[way] if is_finger else way])

    return write


def plain(*forms: str, kind: str | None = None) -> Callable[[Random], tuple[str, DeviceAction | None]]:
    """Any of these means ``kind``; None: something that the devices lack."""
    return lambda random: (random.choice(forms), None if kind is None else DeviceAction(kind))


def unicode(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def tool(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "mobile_use", "arguments": {arguments}}}\n</tool_call>'


SHARES, THOUSANDTHS, PIXELS = Coordinates.shares, Coordinates.thousandths, Coordinates.pixels
FORMATS = {
    "UI-TARS": Format(
        THOUSANDTHS,
        {
            "click": tap(THOUSANDTHS, "click(start_box='<|box_start|>(X,Y)<|box_end|>')"),
            "skipped": tap(THOUSANDTHS, "click(start_box='(X,Y)')"),
            "drag": swipe(THOUSANDTHS, "drag(start_box='(X,Y)', end_box='(X2,Y2)')"),
            "type": text("type(content=TEXT)", call),
            "scroll": scroll("scroll(start_box='(500,500)', direction='WAY')"),
            "home": plain("press_home()", kind="home"),
            "back": plain("press_back()", kind="back"),
            "wait": plain("wait()", kind="wait"),
            "finished": text("finished(content=TEXT)", call, "done"),
            "lacking": plain("long_press(start_box='(5,5)')", "open_app(app_name='Maps')", "hotkey(key='ctrl c')"),
        },
        lambda thought, action: f"Thought: {thought}\nAction: {action}",
    ),
    "UI-TARS 1.5": Format(
        PIXELS,
        {
            "click": tap(PIXELS, "click(point='<point>X Y</point>')"),
            "drag": swipe(PIXELS, "drag(start_point='<point>X Y</point>', end_point='<point>X2 Y2</point>')"),
            "type": text("type(content=TEXT)", call),
            "scroll": scroll("scroll(point='<point>200 400</point>', direction='WAY')"),
            "enter": plain("hotkey(key='enter')", kind="enter"),
            "lacking": plain("left_double(point='<point>5 5</point>')", "right_single(point='<point>5 5</point>')"),
        },
        lambda thought, action: f"Thought: {thought}\nAction: {action}",
    ),
    "Qwen2.5-VL": Format(
        PIXELS,
        {
            "click": tap(PIXELS, tool('{"action": "click", "coordinate": [X, Y]}')),
            "left_click": tap(PIXELS, tool('{"action": "left_click", "coordinate": [X, Y]}')),
            "swipe": swipe(PIXELS, tool('{"action": "swipe", "coordinate": [X, Y], "coordinate2": [X2, Y2]}')),
            "type": text(tool('{"action": "type", "text": TEXT}'), json.dumps),
            "unicode": text(tool('{"action": "type", "text": TEXT}'), unicode),
            "home": plain(tool('{"action": "system_button", "button": "Home"}'), kind="home"),
            "back": plain(tool('{"action": "system_button", "button": "Back"}'), kind="back"),
            "enter": plain(
                tool('{"action": "system_button", "button": "Enter"}'),
                tool('{"action": "key", "keys": ["enter"]}'),
                kind="enter",
            ),
            "wait": plain(tool('{"action": "wait", "time": 2}'), kind="wait"),
            "done": plain(tool('{"action": "terminate", "status": "success"}'), kind="done"),
            "failed": plain(tool('{"action": "terminate", "status": "failure"}'), kind="impossible"),
            "answer": text(tool('{"action": "answer", "text": TEXT}'), json.dumps, "done"),
            "lacking": plain(
                tool('{"action": "long_press", "coordinate": [5, 5], "time": 2}'),
                tool('{"action": "key", "text": "volume_up"}'),
                tool('{"action": "key", "keys": ["ctrl", "c"]}'),
                tool('{"action": "open", "text": "Maps"}'),
                tool('{"action": "system_button", "button": "Menu"}'),
                tool('{"action": "right_click", "coordinate": [5, 5]}'),
                tool('{"action": "mouse_move", "coordinate": [5, 5]}'),
            ),
        },
        lambda thought, action: f"{thought}\n{action}",
    ),
    "OS-Atlas": Format(
        THOUSANDTHS,
        {
            "click": tap(THOUSANDTHS, "CLICK <point>[[X, Y]]</point>"),
            "type": lambda random: ("TYPE [pizza 42]", DeviceAction("type", text="pizza 42")),
            "scroll": scroll("SCROLL [UPPER]"),
            "back": plain("PRESS_BACK", kind="back"),
            "home": plain("PRESS_HOME", kind="home"),
            "enter": plain("ENTER", kind="enter"),
            "wait": plain("WAIT", kind="wait"),
            "done": plain("COMPLETE", kind="done"),
            "lacking": plain("LONG_PRESS <point>[[5, 5]]</point>", "OPEN_APP [Maps]"),
        },
        lambda thought, action: f"thoughts:\n{thought}\nactions:\n{action}",
    ),
    "ShowUI": Format(
        SHARES,
        {
            "click": tap(SHARES, "{'action': 'CLICK', 'value': None, 'position': [X, Y]}"),
            "tap": tap(SHARES, "{'action': 'TAP', 'value': None, 'position': [X, Y]}"),
            "swipe": swipe(SHARES, "{'action': 'SWIPE', 'value': None, 'position': [[X, Y], [X2, Y2]]}"),
            "input": lambda random: (
                "{'action': 'INPUT', 'value': 'weather', 'position': [0.5, 0.25]}",
                DeviceAction("type_at", 0.5, 0.25, text="weather"),
            ),
            "scroll": scroll("{'action': 'SCROLL', 'value': 'WAY', 'position': None}"),
            "enter": plain("{'action': 'ENTER', 'value': None, 'position': None}", kind="enter"),
            "answer": plain("{'action': 'ANSWER', 'value': 'task complete', 'position': None}", kind="done"),
            "lacking": plain(
                "{'action': 'HOVER', 'value': None, 'position': [0.5, 0.5]}",
                "{'action': 'SELECT', 'value': 'x', 'position': [0.5, 0.5]}",
                "{'action': 'COPY', 'value': 'x', 'position': None}",
            ),
        },
        lambda _, action: action,
    ),
    "AutoGLM": Format(
        THOUSANDTHS,
        {
            "tap": tap(THOUSANDTHS, 'do(action="Tap", element=[X,Y])'),
            "swipe": swipe(THOUSANDTHS, 'do(action="Swipe", start=[X,Y], end=[X2,Y2])'),
            "area": scroll('do(action="Swipe", direction="WAY", element=[400,400,600,600])', is_finger=True),
            "type": text('do(action="Type", text=TEXT)', call),
            "name": text('do(action="Type_Name", text=TEXT)', call),
            "back": plain('do(action="Back")', kind="back"),
            "home": plain('do(action="Home")', kind="home"),
            "wait": plain('do(action="Wait", duration="2 seconds")', kind="wait"),
            "finish": text("finish(message=TEXT)", call, "done"),
            "lacking": plain(
                'do(action="Long Press", element=[5,5])',
                'do(action="Double Tap", element=[5,5])',
                'do(action="Launch", app="Maps")',
                'do(action="Take_over", message="login")',
            ),
        },
        lambda thought, action: f"<think>{thought}</think>\n<answer>{action}</answer>",
    ),
    "CogAgent": Format(
        THOUSANDTHS,
        {
            "click": box("CLICK(box=BOX, element_type='可点击文本', element_info='全部标为已读')"),
            "type": lambda random: (
                "TYPE(box=[[387,249,727,317]], text='CogAgent', element_type='文本输入框', element_info='x')",
                DeviceAction("type_at", 0.557, 0.283, text="CogAgent"),
            ),
            "enter": plain("KEY_PRESS(key='Return')", kind="enter"),
            "end": plain("END", "END()", kind="done"),
            "lacking": plain(
                "DOUBLE_CLICK(box=[[387,248,727,317]])",
                "HOVER(box=[[387,248,727,317]], element_type='x')",
                "KEY_PRESS(key='F11')",
                "GESTURE(actions=[KEY_DOWN(key='Lcontrol'), KEY_PRESS(key='A'), KEY_UP(key='Lcontrol')])",
                "LAUNCH(app='设置', url='None')",
            ),
        },
        lambda thought, action: f"Action: {thought}\nGrounded Operation: {action}\n<<一般操作>>",
    ),
    "Aguvis": Format(
        SHARES,
        {
            "click": tap(SHARES, "pyautogui.click(x=X, y=Y)"),
            "swipe": swipe(SHARES, "mobile.swipe(from_coord=[X, Y], to_coord=[X2, Y2])"),
            "write": text("pyautogui.write(message=TEXT)", call),
            "enter": plain("pyautogui.press('enter')", kind="enter"),
            "home": plain("mobile.home()", kind="home"),
            "back": plain("mobile.back()", kind="back"),
            "wait": plain("mobile.wait(seconds=3)", kind="wait"),
            "done": plain("terminate(status='success')", kind="done"),
            "lacking": plain(
                "mobile.long_press(x=0.5, y=0.5)", "mobile.open_app(app_name='Maps')",
                "pyautogui.hotkey(['ctrl', 'c'])", "pyautogui.doubleClick(x=0.5, y=0.5)",
            ),
        },
        lambda thought, action: f"{thought}\n```python\n{action}\n```",
    ),
}  # fmt: skip


def answers(name: str) -> list[tuple[str, DeviceAction | None]]:
    """Answers in one format, each with what it means; None: nothing that the devices know."""
    random, form = Random(name), FORMATS[name]
    found = []
    for number in range(ANSWERS):
        kinds = [*form.writes]
        action, meant = form.writes[kinds[number % len(kinds)]](random)
        found.append((form.thinks(random.choice(THOUGHTS), action), meant))
    return found


def same(action: DeviceAction, meant: DeviceAction) -> bool:
    """Whether two actions are the same, but for rounding."""
    numbers = [(action.x, meant.x), (action.y, meant.y), (action.to_x, meant.to_x), (action.to_y, meant.to_y)]
    return (action.type, action.text) == (meant.type, meant.text) and all(abs(a - b) < 1e-9 for a, b in numbers)


@pytest.mark.parametrize("name", FORMATS)
def test_a_hundred_answers_of_each_format_are_read_as_meant_or_counted(name: str) -> None:
    for answer, meant in answers(name):
        found = action_of(answer, FORMATS[name].coordinates, SHOWN)
        assert found[SAID] == answer
        if meant is None:
            assert found["type"] == "wait" and found[UNREAD], answer
        else:
            assert UNREAD not in found and same(DeviceAction.from_json(found), meant), answer


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_was_cut_off_is_no_other_action(name: str) -> None:
    random, coordinates = Random(name), FORMATS[name].coordinates
    for answer, meant in answers(name):
        cut = answer[: random.randrange(len(answer))]
        found = action_of(cut, coordinates, SHOWN)
        if UNREAD not in found:
            assert meant is not None and found["type"] == meant.type, cut
            assert meant.type == "done" or same(DeviceAction.from_json(found), meant), cut


@pytest.mark.parametrize("name", FORMATS)
def test_places_of_another_unit_are_never_taken_for_those_that_are_set(name: str) -> None:
    """A place at a tenth of the screen or beyond reads alike in no two units."""
    units = {SHARES: 1, PIXELS: 400, THOUSANDTHS: 1000}
    written = FORMATS[name].coordinates
    for answer, meant in answers(name):
        if meant is None or meant.type != "tap" or min(meant.x, meant.y) < 0.5:
            continue
        for unit in units:
            found = action_of(answer, unit, SHOWN)
            assert unit is written or UNREAD in found or {unit, written} == {PIXELS, THOUSANDTHS}, (answer, unit)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Let me go back to the start and look.",
        "Back to the list, then home.",
        "Type the name into the field",
        '{"type": "tap"}',
        '{"type": "tap", "x": 0.5}',
        '{"type": "tap", "x": 0.5, "y": 1.5}',
        '{"type": "tap", "x": -0.1, "y": 0.5}',
        '{"type": "tap", "x": "half", "y": 0.5}',
        '{"type": "tap", "x": true, "y": 0.5}',
        '{"type": "tap", "x": 0.5, "y": 0.5, "coordinate": [0.1, 0.1]}',
        '{"type": "tap", "x": 0.5, "x": 0.6, "y": 0.5}',
        '{"type": "tap", "coordinate": [0.5, 0.5, 0.6]}',
        '{"thought": "The 3rd item of 7", "action": "click"}',
        '{"action": "click", "button": "right", "x": 0.5, "y": 0.5}',
        '{"action": "type", "text": "a", "press_enter": true}',
        '{"action": "type", "text": "a", "content": "b"}',
        '{"action": "swipe", "direction": "sideways"}',
        '{"action": "scroll"}',
        '{"action": "terminate", "status": "perhaps"}',
        '{"action": "tap", "type": "wait", "x": 0.5, "y": 0.5}',
        '{"action": "tap", "mark": 2}',
        '{"action": "tap", "mark": 0}',
        '{"action": "tap", "mark": 1, "x": 0.5, "y": 0.5}',
        '[{"type": "back"}, {"type": "home"}]',
        "Action: click(point='<point>0.5 0.5</point>')\nAction: press_back()",
        "tap(0.5, 0.5) or tap(0.1, 0.1)",
        "press_back()\nENTER",
        '{"type": "back"}\nhome',
        "actions:\nTYPE [hello]\nclick(start_box='(500,500)')",
        '<think>I could do(action="Back") but',
        "Thought: press_back() would leave the page, so not that. I will rather",
        "<think>First this.</think>\nThought: maybe\nhome\nis the right tab, so I",
        "tap(5000, 2)",
        "tap 0.5 0.5",
        "click('12')",
        '{"type": "type", "text": "say "hi" {"type": "back"}"}',
        'type(content=\'it\'s {"type": "back"}\')',
        "type(content='a\nAction: press_back()')",
        "{" * 30_000,
        '{"type": ' * 3_000,
        '{"type": "tap", "x": ' + "[" * 800 + "]" * 800 + ', "y": 0.5}',
        '{"type": "tap", "x": ' + "9" * 400 + ', "y": 0.5}',
        '{"type": "tap", "x": 1e999, "y": 0.5}',
        "do(" * 10_000,
        "tap(" + "(" * 10_000,
        'f("' * 10_000,
        "a" * 100_000,
        "back\n" * 20_000,
        "﻿\u202e\x00\ud800",
    ],
    ids=lambda answer: f"{answer[:40]!a}",
)
def test_what_is_not_clear_is_unread(answer: str) -> None:
    with pytest.raises(ActionError):
        read(answer, SHARES, SHOWN)
    assert action_of(answer, SHARES, SHOWN)[UNREAD]


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("type(content='{\"type\": \"back\"}')", DeviceAction("type", text='{"type": "back"}')),
        ('{"type": "type", "text": "<ans>{x: 1}"}', DeviceAction("type", text="<ans>{x: 1}")),
        ("<think>tap(0.1, 0.1)</think>type('</think> back')", DeviceAction("type", text="</think> back")),
        ('{"type": "type", "text": "Action: home"}', DeviceAction("type", text="Action: home")),
        ('{"type": "type", "text": "\\ud83d\\ude00 \\ud83d"}', DeviceAction("type", text="😀 \ufffd")),
        ('{"action": "tap", "mark": 1}', DeviceAction("tap", 0.25, 0.5)),
        ('{"name": "click", "arguments": "{\\"x\\": 0.25, \\"y\\": 0.5}"}', DeviceAction("tap", 0.25, 0.5)),
        ('{"type": "back"}\n{"type": "back"}', DeviceAction("back")),
    ],
)  # fmt: skip
def test_what_stands_between_quotes_is_a_text_and_nothing_else(answer: str, action: DeviceAction) -> None:
    assert read(answer, SHARES, SHOWN) == action


def test_a_numbered_element_is_tapped_in_every_unit() -> None:
    for unit in Coordinates:
        assert same(read('{"type": "tap", "mark": 1}', unit, SHOWN), DeviceAction("tap", 0.25, 0.5))
    with pytest.raises(ActionError, match="size of the picture"):
        read("tap(5, 5)", PIXELS)
