"""What a rank prints when it fails."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from digirl_dist.errors import EmulatorError
from digirl_dist.parallel.failure import telling, words_of_failure
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


def test_of_what_ranks_printed_the_first_own_failure_is_told_to_its_end() -> None:
    noise, peer = ["a warning"], ["rank 0 of 3 failed: rank 1 failed: KeyError: 'goal'"]
    trace = ["rank 1 of 3 failed:", *(f"  File {k}" for k in range(200)), "KeyError: 'goal'"]
    other = ["rank 2 of 3 failed:", "ValueError: late"]
    told = words_of_failure([*noise, *peer, *trace, *other])
    assert told[:2] == trace[:2] and told[-1] == trace[-1] and len(told) < 70
    assert words_of_failure([*noise, *peer]) == peer
    assert words_of_failure(noise * 99) == noise * 60


class GoneStore(HashStore):
    """As where rank 0, which holds it, has died."""

    def set(self, *_: object) -> None:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize(("store", "named"), [(HashStore(), "rank 1"), (GoneStore(), "rank 0")])
def test_who_died_during_an_exchange_is_named(store: HashStore, named: str) -> None:
    group = Group(Rank(0 if named == "rank 1" else 1, 2), store, GroupLimits())
    failed = group.failed_exchange(RuntimeError("Connection reset by peer"))
    assert str(failed).startswith(f"{named} did not take part in an exchange")
