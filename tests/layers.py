"""The three layers of tests, and the guard of the first: a unit test starts no process and opens no socket.

A test is a unit test unless its module (``pytestmark``) or itself is marked ``component`` or ``system``.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

UNIT, COMPONENT, SYSTEM = LAYERS = ("unit", "component", "system")

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec")
_OPENS = ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
FORBIDDEN = {**dict.fromkeys(_STARTS, "started a process"), **dict.fromkeys(_OPENS, "opened a socket")}
"""Audit event of the interpreter -> what a test did that raised it."""


def layer(item: pytest.Item) -> str:
    """Returns the layer of a test; a mark on the test itself comes before that of its module."""
    return next((mark.name for mark in item.iter_markers() if mark.name in LAYERS), UNIT)


def may_have(module: Path, wanted: str) -> bool:
    """Whether a module has tests of a layer, by its text: without any it need not be imported, which takes seconds."""
    text = module.read_text()
    whole = re.search(r"^pytestmark = .*\bmark\.(component|system)\b", text, re.MULTILINE)
    return wanted == (whole[1] if whole else UNIT) or f"mark.{wanted}" in text


@dataclass
class _Guard:
    """What is watched while a unit test runs, and what it did that it must not."""

    others: frozenset[int]
    """Identifiers of the threads that were there before the test: an earlier test's cluster, for example."""
    done: list[str] = field(default_factory=list)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() not in self.others and not _importing():
            self.done.append(f"{FORBIDDEN[event]}: {event} {_shown(event, arguments)}")
            self.refuse()

    def refuse(self) -> None:
        """Fails the test, with an exception that ``except Exception`` does not swallow."""
        pytest.fail(
            f"a unit test {self.done[0]}. Tests of one real part are marked pytest.mark.component, "
            "tests of several together pytest.mark.system",
            pytrace=True,
        )


_active: list[_Guard] = []


@contextmanager
def guarded() -> Iterator[None]:
    """Fails with what the block did, if it or a thread that it started raises one of the ``FORBIDDEN`` events."""
    here = threading.get_ident()
    guard = _Guard(frozenset(one.ident for one in threading.enumerate() if one.ident not in (here, None)))
    _active.append(guard)
    try:
        yield
    finally:
        _active.remove(guard)
    if guard.done:  # in a thread, or where the code under test swallowed the refusal
        guard.refuse()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in FORBIDDEN:
        _active[-1].see(event, arguments)


def _importing() -> bool:
    """Whether it happens while a module is imported, as libraries ask there for what the machine has."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
    return False


def _shown(event: str, arguments: tuple[Any, ...]) -> str:
    """The program and its words, or the address."""
    has_its_object_first = event in ("subprocess.Popen", "socket.bind", "socket.connect", "socket.sendto")
    wanted = arguments[1:2] if has_its_object_first else arguments[:2]
    return " ".join(str(each) for each in wanted)[:200]


sys.addaudithook(_audit)
