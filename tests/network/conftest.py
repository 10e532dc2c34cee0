"""Machines on a real network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from network.bare_machine import BareMachine
from network.machines import Machine, machine, remove_leftovers, what_is_missing


@pytest.fixture(scope="session")
def _machines_can_be_made() -> None:
    if missing := what_is_missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    remove_leftovers()


@pytest.fixture
def make_machines(_machines_can_be_made: None, tmp_path: Path) -> Iterator[Callable[[int], list[Machine]]]:
    """Makes that many machines, w1 and so on, for the time of a test."""
    with ExitStack() as stack:

        def make(count: int) -> list[Machine]:
            return [stack.enter_context(machine(number, tmp_path / f"m{number}")) for number in range(1, count + 1)]

        yield make


@pytest.fixture
def machines(make_machines: Callable[[int], list[Machine]]) -> list[Machine]:
    """Two of them."""
    return make_machines(2)


@pytest.fixture(scope="module")
def bare(_machines_can_be_made: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    """One with a fresh user, for all tests of a file: each leaves it as it was."""
    made = BareMachine(1, tmp_path_factory.mktemp("bare"))
    try:
        made.open()
        yield made
    finally:
        made.close()
