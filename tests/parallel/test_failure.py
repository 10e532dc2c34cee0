"""What a rank prints when it fails."""

from __future__ import annotations

import pytest

from digirl_dist.errors import EmulatorError
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.rank import own_rank


def test_a_wrong_answer_of_an_environment_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EmulatorError), telling(own_rank({})):
        raise EmulatorError("Corridor-v0: its reward is nan")
    assert capsys.readouterr().err == "rank 0 of 1 failed: Corridor-v0: its reward is nan\n"


def test_what_an_environment_raises_itself_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), telling(own_rank({})):
        raise KeyError("goal")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "rank 0 of 1 failed:" and last == "KeyError: 'goal'"
