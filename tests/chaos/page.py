"""A page of the viewer without a browser: it follows what is new, and asks for what it lacks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urljoin
from urllib.request import urlopen

_TIMELINE_EVERY = 10
_ANSWER_S = 120.0


class Page(threading.Thread):
    """Watches one run. ``answers`` counts what it was shown, ``error`` is what ended it before ``closing``."""

    def __init__(self, address: str) -> None:
        super().__init__(name="page", daemon=True)
        self.answers = 0
        self.error: Exception | None = None
        self.closing = threading.Event()
        self._address = address
        self._rows = 0
        self._has = dict.fromkeys(("stamp", "figures", "measured", "iterations", "events"), "")
        """How far it has been told of each."""

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.error = None if self.closing.is_set() else error

    def _watch(self) -> None:
        (name,) = self._answer("runs")
        with urlopen(urljoin(self._address, "api/live"), timeout=_ANSWER_S) as news:
            for number, _ in enumerate(line for line in news if line.strip()):
                self._has["stamp"] = self._news("run", name, "figures", "measured", "stamp")["state"]["stamp"]
                self._rows += self._answer("rows", run=name, first=str(self._rows))["count"]
                if number % _TIMELINE_EVERY == 0:
                    self._news("timeline", name, "iterations", "events")

    def _news(self, what: str, run: str, *parts: str) -> Any:
        """Returns what came since it was asked for these parts."""
        found = self._answer(what, run=run, **{part: self._has[part] for part in parts})
        self._has |= {part: found[part]["next"] for part in parts if part in found}
        return found

    def _answer(self, what: str, **query: str) -> Any:
        with urlopen(urljoin(self._address, f"api/{what}?{urlencode(query)}"), timeout=_ANSWER_S) as answer:
            content = json.load(answer)
        self.answers += 1
        return content


@contextmanager
def watch_page(address: str) -> Iterator[Page]:
    """Watches the page at ``address`` until the block ends. Raises RuntimeError if it ended before."""
    page = Page(address)
    page.start()
    yield page
    page.closing.set()
    if page.error is not None:
        raise RuntimeError(f"the page stopped to watch after {page.answers} answers: {page.error!r}")
