"""What a rank prints when it fails."""

from __future__ import annotations

import errno
import sys
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from digirl_dist.errors import EmulatorError
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.group import Group, GroupLimits
from digirl_dist.parallel.rank import Rank, own_rank


def test_a_wrong_answer_of_an_environment_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EmulatorError), telling(own_rank({})):
        raise EmulatorError("Corridor-v0: its reward is nan")
    assert capsys.readouterr().err == "rank 0 of 1 failed: Corridor-v0: its reward is nan\n"


def test_what_an_environment_raises_itself_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), telling(own_rank({})):
        raise KeyError("goal")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "rank 0 of 1 failed:" and last == "KeyError: 'goal'"


def test_where_nobody_can_be_told_what_failed_stays_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: str) -> None:
        raise OSError(errno.EIO, "the terminal is gone")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write))
    with pytest.raises(KeyError, match="goal"), telling(own_rank({})):
        raise KeyError("goal")


class GoneStore(HashStore):
    """As where rank 0, which holds it, has died."""

    def set(self, *_: object) -> None:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize(("store", "named"), [(HashStore(), "rank 1"), (GoneStore(), "rank 0")])
def test_who_died_during_an_exchange_is_named(store: HashStore, named: str) -> None:
    group = Group(Rank(0 if named == "rank 1" else 1, 2), store, GroupLimits())
    failed = group.failed_exchange(RuntimeError("Connection reset by peer"))
    assert str(failed).startswith(f"{named} did not take part in an exchange")
