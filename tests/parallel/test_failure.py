"""What a rank prints when it fails."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from digirl_dist.errors import EmulatorError, PeerError
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.group import Group, GroupLimits, TorchExchange
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


class GoneStore(HashStore):
    """As where rank 0, which holds it, has died."""

    def set(self, *_: object) -> None:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize(("store", "named"), [(HashStore(), "rank 1"), (GoneStore(), "rank 0")])
def test_who_died_during_an_exchange_of_gradients_by_xla_is_named(store: HashStore, named: str) -> None:
    jax = pytest.importorskip("jax")
    from digirl_dist.parallel.jax_group import naming_who_is_missing

    group = Group(Rank(0 if named == "rank 1" else 1, 2), store, TorchExchange(), GroupLimits())
    with pytest.raises(PeerError, match=f"^{named} did not take part in an exchange"), naming_who_is_missing(group):
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    with pytest.raises(jax.errors.JaxRuntimeError), naming_who_is_missing(group):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
