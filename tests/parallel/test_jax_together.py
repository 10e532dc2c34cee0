"""Two real JAX ranks: acceptance row C2 and what their group offers, on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from parallel.jax_two_ranks import UNEVEN, learn, pieces
from rank_launch import launch

from digirl_dist.algorithm.ppo import TorchLearner
from digirl_dist.algorithm.ppo_jax import JaxLearner
from digirl_dist.parallel.peers import ALONE

pytestmark = [pytest.mark.component, pytest.mark.long_file(15)]

PROGRAM = Path(__file__).parent / "jax_two_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks found."""
    folder = tmp_path_factory.mktemp("together")
    launcher = [sys.executable, "-m", "digirl_dist.parallel.jax", "--nproc_per_node=2"]
    ended = launch([*launcher, str(PROGRAM), str(folder)], limit_s=150)
    assert ended.status == 0, ended.out
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


WAYS = {"uneven": pieces(), "nothing on rank 1": pieces()[UNEVEN[0]]}
"""What two ranks learn from, and what one process learns from to the same end."""


@pytest.mark.parametrize("way", WAYS)
def test_c2_the_ranks_hold_the_same_bits(found: list[dict[str, Any]], way: str) -> None:
    assert found[0][way] == found[1][way]


@pytest.mark.parametrize(
    ("way", "learner"), [("uneven", JaxLearner), ("uneven", TorchLearner), ("nothing on rank 1", TorchLearner)]
)
def test_c2_uneven_parts_learn_what_one_process_learns(found: list[dict[str, Any]], way: str, learner: Any) -> None:
    weights, losses = found[0][way]
    alone, alone_losses = learn(WAYS[way], ALONE, learner)
    assert weights == pytest.approx(alone, abs=1e-5)
    assert losses == pytest.approx(alone_losses, rel=1e-4, abs=1e-5)
    assert max(losses) - min(losses) > 0.1


def test_ranks_add_up_and_tell_each_other_by_the_coordinator(found: list[dict[str, Any]]) -> None:
    for rank, there in enumerate(found):
        assert there["averages"] == {"episode_reward_avg_100": 0.5, "episode_length_avg_100": 20.0}
        assert (there["largest"], there["broadcast"]) == (1, "word")
        assert there["gathered"] == ([] if rank else ["of 0", "of 1"])
        assert "the weights of rank 1 differ" in there["astray"]
