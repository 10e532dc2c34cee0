"""A viewer that serves runs, and a real Chromium that looks at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from digirl_dist.emulator import chromium
from digirl_dist.viewer.server import Viewer

_LIMIT_S = 240.0
_NOBODY = "--host-resolver-rules=MAP * ~NOTFOUND"
_FLAGS = tuple(f"{flag}, EXCLUDE 127.0.0.1" if flag == _NOBODY else flag for flag in chromium.FLAGS)
"""The browser of the emulators reaches nobody; this one reaches loopback alone."""


@contextmanager
def served(folders: Sequence[Path]) -> Iterator[Viewer]:
    viewer = Viewer(folders)
    serving = threading.Thread(target=viewer.serve, daemon=True)
    serving.start()
    try:
        yield viewer
    finally:
        viewer.close()
        serving.join(_LIMIT_S)


class Browser:
    """What a person does with the page."""

    def __init__(self, viewer_url: str, width: int = 1280, height: int = 900) -> None:
        with patch.object(chromium, "FLAGS", _FLAGS):
            self._chromium = chromium.Chromium(width, height)
        self.page = self._chromium.page
        self.page.open(viewer_url)
        self.clicks = 0

    def wait(self, condition: str, *arguments: Any) -> Any:
        """What a JavaScript expression is, once it is true."""
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            if found := self.page.run(f"return {condition}", *arguments):
                return found
            time.sleep(0.05)
        raise AssertionError(f"not true in time: {condition}; the page says: {self.text()[:2000]}")

    def go(self, address: str) -> None:
        """To a deep link."""
        self.page.run("location.hash = arguments[0]", address)
        self.wait("location.hash === arguments[0] && document.querySelector('.view') !== null", address)

    def click(self, selector: str, says: str = "") -> None:
        """Clicks the first element that matches and contains ``says``, once it is there."""
        found = "[...document.querySelectorAll(arguments[0])].find((each) => each.textContent.includes(arguments[1]))"
        self.wait(f"Boolean({found})", selector, says)
        act = "element.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX: box.x + box.width / 2}))"
        self.page.run(f"const element = {found}; const box = element.getBoundingClientRect(); {act}", selector, says)
        self.clicks += 1

    def choose(self, selector: str, value: str) -> None:
        """Sets a field as a person would; counts as a click."""
        self.wait("document.querySelector(arguments[0]) !== null", selector)
        change = "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true}))"
        self.page.run(
            f"const field = document.querySelector(arguments[0]); field.value = arguments[1]; {change}", selector, value
        )
        self.clicks += 1

    def press(self, key: str) -> None:
        self.page.run(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", key
        )

    def emulate(self, feature: str, value: str) -> None:
        """A preference of the user's, such as dark colours."""
        features = {"features": [{"name": feature, "value": value}]}
        self.page._devtools.ask("Emulation.setEmulatedMedia", features, time.monotonic() + _LIMIT_S)

    def fit(self, width: int, least: int, most: int) -> None:
        """Makes the window as high as the page, within limits."""
        self._resize(width, least)
        self._resize(width, min(max(least, int(self.page.run("return document.body.scrollHeight"))), most))

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.page._devtools.ask("Emulation.setDeviceMetricsOverride", size, time.monotonic() + _LIMIT_S)
        self.wait("innerHeight === arguments[0]", height)

    def text(self, selector: str = "#main") -> str:
        return str(self.page.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def says(self, words: str, selector: str = "#main") -> None:
        self.wait("(document.querySelector(arguments[0])?.innerText ?? '').includes(arguments[1])", selector, words)

    def close(self) -> None:
        self._chromium.close()
