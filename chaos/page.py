"""A page of the viewer without a browser: it follows what is new, and asks again for what it shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, build_opener

_TIMELINE_EVERY = 10
_ANSWER_S = 120.0


class Page(threading.Thread):
    """Watches one run. ``answers`` counts what it was shown, ``error`` is what ended it before ``closing``."""

    def __init__(self, address: str) -> None:
        super().__init__(name="page", daemon=True)
        self.answers = 0
        self.error: Exception | None = None
        self.closing = threading.Event()
        self._rows = 0
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        with self._opener.open(address, timeout=_ANSWER_S) as page:
            self._base = page.geturl()

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.error = None if self.closing.is_set() else error

    def _watch(self) -> None:
        with self._opener.open(urljoin(self._base, "api/live"), timeout=_ANSWER_S) as news:
            for number, _ in enumerate(line for line in news if line.strip()):
                for run in self._answer("runs"):
                    self._rows += self._answer("rows", run=run["name"], first=str(self._rows))["count"]
                    if number % _TIMELINE_EVERY == 0:
                        self._answer("timeline", run=run["name"])

    def _answer(self, what: str, **query: str) -> Any:
        with self._opener.open(urljoin(self._base, f"api/{what}?{urlencode(query)}"), timeout=_ANSWER_S) as answer:
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
