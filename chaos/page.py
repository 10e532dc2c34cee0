"""A page of the viewer without a browser: it follows what is new, and asks again for what it shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from http.cookiejar import CookieJar
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

_TIMELINE_EVERY = 10
_ANSWER_S = 60.0


@contextmanager
def watch_page(address: str) -> Iterator[None]:
    """Opens the page at ``address``, and watches from a thread until the block ends."""
    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    closing = threading.Event()
    with opener.open(address, timeout=_ANSWER_S) as page:
        base = page.geturl()
    watching = threading.Thread(target=_watch, args=[opener, base, closing], name="page", daemon=True)
    watching.start()
    yield
    closing.set()


def _watch(opener: OpenerDirector, base: str, closing: threading.Event) -> None:
    with suppress(OSError, HTTPException), opener.open(urljoin(base, "api/live"), timeout=_ANSWER_S) as news:
        for number, _ in enumerate(line for line in news if line.strip()):
            if closing.is_set():
                return
            runs = json.loads(_answer(opener, base, "runs"))
            for run in runs:
                _answer(opener, base, "rows", run=run["name"], first="0")
                if number % _TIMELINE_EVERY == 0:
                    _answer(opener, base, "timeline", run=run["name"])


def _answer(opener: OpenerDirector, base: str, what: str, **query: str) -> bytes:
    with opener.open(urljoin(base, f"api/{what}?{urlencode(query)}"), timeout=_ANSWER_S) as answer:
        content: bytes = answer.read()
        return content
