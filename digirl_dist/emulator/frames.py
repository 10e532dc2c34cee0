"""The frames of a page, drawn when they are asked for: half the work of a browser that draws when it likes."""

from __future__ import annotations

import base64
import time
from typing import Any

from digirl_dist.emulator.devtools import Devtools
from digirl_dist.errors import EmulatorError

FLAGS = (
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",  # a frame shows all that scripts have changed before
    "--disable-checker-imaging",  # and the images whole
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-new-content-rendering-timeout",
)
"""A headless shell that is started with these draws a frame for each command and none of its own."""

_COMMAND = "HeadlessExperimental.beginFrame"
_LONGEST_FRAME_S = 60.0
_LOOK_S = 0.005
_ALIKE = 2
"""Frames in a row that show nothing new, after which no more is expected: a scroll shows in every other one."""
_MOST_FRAMES = 8
"""Drawn of a page that never rests; each takes a third of a millisecond."""


class Frames:
    """Draws frames one at a time, and goes on while something else is awaited: it may be waiting for a frame."""

    def __init__(self, devtools: Devtools) -> None:
        self._devtools = devtools
        self._latest: int | None = None
        devtools.idle = self._keep_on

    def begin(self, deadline: float, **wanted: Any) -> int:
        """Lets the page's scripts know of a new frame, after the commands that were sent before.

        Waits for the frame before, and not for this one; returns the number of its command.
        """
        self._finish(deadline)
        if self._latest is not None:
            self._devtools.forget(self._latest)
        self._latest = self._devtools.begin(_COMMAND, wanted, deadline)
        return self._latest

    def picture(self, deadline: float) -> bytes:
        """PNG of the page as it is once its frames no longer differ. Raises EmulatorError if there is none in time."""
        while time.monotonic() < deadline:
            self._settle(deadline)
            drawn = self._draw(deadline, screenshot={"format": "png", "optimizeForSpeed": True})
            if "screenshotData" in drawn:
                return base64.b64decode(drawn["screenshotData"])
            time.sleep(_LOOK_S)  # a page that was just opened has nothing to show for a moment
        raise EmulatorError("the browser drew no picture of the page")

    def _settle(self, deadline: float) -> None:
        alike = 0
        for _ in range(_MOST_FRAMES):
            alike = 0 if self._draw(deadline).get("hasDamage") else alike + 1
            if alike == _ALIKE:
                break

    def _draw(self, deadline: float, **wanted: Any) -> dict[str, Any]:
        number = self.begin(deadline, **wanted)
        self._finish(deadline)
        return self._devtools.result(number)

    def _finish(self, deadline: float) -> None:
        self._devtools.wait(self._is_finished, deadline, "a frame")

    def _is_finished(self) -> bool:
        return self._latest is None or self._devtools.is_answered(self._latest)

    def _keep_on(self) -> None:
        if self._is_finished():
            self.begin(time.monotonic() + _LONGEST_FRAME_S)
