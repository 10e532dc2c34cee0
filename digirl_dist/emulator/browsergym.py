"""Touch-screen actions in the words of BrowserGym's action set (its ``coord`` and ``nav`` parts)."""

from __future__ import annotations

from digirl_dist.emulator.touch_actions import DeviceAction


def touch(action: DeviceAction, screen: tuple[int, int]) -> str:
    """The call that BrowserGym carries out; ``screen`` is height and width in pixels. A swipe drags, home waits."""
    height, width = screen

    def point(x: float, y: float) -> str:
        return f"{min(int(x * width), width - 1)}, {min(int(y * height), height - 1)}"

    match action.type:
        case "tap":
            return f"mouse_click({point(action.x, action.y)})"
        case "swipe":
            return f"mouse_drag_and_drop({point(action.x, action.y)}, {point(action.to_x, action.to_y)})"
        case "type":
            return f"keyboard_type({action.text!r})"
        case "enter":
            return "keyboard_press('Enter')"
        case "back":
            return "go_back()"
        case _:
            return "noop()"
