"""Rollouts that are asked for by key, through whatever befalls hosts, links and workers: one episode for each key."""

from __future__ import annotations

import pytest

from simulate.scenario import draw
from simulate.streamed import StreamedRun


@pytest.mark.component
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_every_key_has_one_episode_whatever_befalls_whom(first: int) -> None:
    for seed in range(first, first + 50):
        StreamedRun(draw(seed)).run()
