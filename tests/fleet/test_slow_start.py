"""A worker program that takes long to get to work."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from collector_site import Kind, keys, site, tickets
from user_classes import Coin

from digirl_dist.tasks import Key

pytestmark = pytest.mark.system

_SILENCE_S = 6.0


class Heavy(Coin):
    """While a worker makes one, no other thread of its program runs, as when a library comes from a slow disk."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        ctypes.PyDLL(None).sleep(int(_SILENCE_S) + 3)  # keeps the interpreter's lock


def test_a_program_that_is_long_silent_before_it_works_is_not_lost(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, workers=1, silence_s=_SILENCE_S, agent=Heavy) as here:
        assert keys(here.collect(tickets(4))) == [Key(0, index) for index in range(4)]
        assert here.count("worker_lost") == 0
