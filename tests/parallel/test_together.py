"""Two real ranks: acceptance rows B1, B2, B5 and the limits of B8, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_launch import launch, ranks

pytestmark = pytest.mark.component

PROGRAM = Path(__file__).parent / "torch_two_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks found."""
    folder = tmp_path_factory.mktemp("together")
    ended = launch(ranks(2, str(PROGRAM), str(folder)))
    assert ended.status == 0, ended.out
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


WAYS = {
    "shared": "alone",
    "own": "alone",
    "own, few at once": "alone",
    "shared, few at once": "alone, few at once",
    "shared, grpo": "alone, grpo",
    "own, grpo": "alone, grpo",
    "nothing on rank 1, grpo": "half, grpo",
    "own, ppo": "alone, ppo",
}
"""What two ranks learn, and who learns the same alone."""

SHARDED = {
    "sharded": "alone, 2 of 3",
    "sharded, frozen": "alone, frozen",
    "sharded, ppo": "alone, ppo",
    "sharded, grpo that imitates": "alone, grpo that imitates",
    "sharded, in parts": "alone, 7 of 14",
}
"""The same for ranks with a part of the weights each; a minibatch may have fewer rows than there are ranks, one more on
one of them, or rows to imitate on one alone."""


def test_an_update_with_nothing_to_learn_goes_by_in_step(found: list[dict[str, Any]]) -> None:
    """All groups alike, as once a task is solved, or no episode at all."""
    for rank in found:
        for way in rank["nothing to learn"]:
            assert set(way) == {"grpo", "grpo_replay", "filtered_bc", "digirl", "ppo"} and not any(way.values())


@pytest.mark.parametrize("way", WAYS)
def test_b1_the_ranks_hold_the_same_bits_after_every_update(found: list[dict[str, Any]], way: str) -> None:
    assert found[0][way] == found[1][way]


@pytest.mark.parametrize(("way", "reference"), {**WAYS, **SHARDED}.items())
def test_b2_uneven_parts_learn_what_one_process_learns(found: list[dict[str, Any]], way: str, reference: str) -> None:
    (weights, losses), (alone, alone_losses) = found[0][way], found[0][reference]
    assert weights == pytest.approx(alone, abs=1e-5)
    assert losses == pytest.approx(alone_losses, abs=1e-5)
    assert alone_losses[-1] < alone_losses[0] - 0.01


def test_each_rank_has_a_part_of_a_sharded_agent_and_rank_0_saves_all_of_it(found: list[dict[str, Any]]) -> None:
    parts = [there["shares"]["part"] for there in found]
    assert sum(parts) == found[0]["shares"]["of"] == len(found[0]["sharded"][0]) and min(parts) > 0
    assert len({*found[0]["learning"]}) == 1, "as many parameters learn, sharded or not"
    assert found[1]["sharded"][0] == [] and found[0]["sharded"][1] == found[1]["sharded"][1]
    assert all("'T5Block'; there are" in there["shares"]["refused"] for there in found)


def test_b2_an_empty_part_weighs_nothing_and_an_unused_parameter_stays_without_gradient(
    found: list[dict[str, Any]],
) -> None:
    assert found[0]["gradients"] == found[1]["gradients"] == [[3.0, 3.0], None, 2.0]
    assert found[0]["total"] == found[1]["total"] == [3.0]


def test_b2_parameters_may_have_several_precisions_and_their_weights_are_exact(found: list[dict[str, Any]]) -> None:
    assert found[0]["low precision"] == found[1]["low precision"] == [[0.5], [0.5], 1.875]


def test_b5_averages_are_over_the_windows_of_all_ranks(found: list[dict[str, Any]]) -> None:
    for windows in (found[0]["windows"], found[1]["windows"]):
        assert windows["empty"] == {}
        assert windows["rank 0 alone"] == {"episode_reward_avg_100": 0.0, "episode_length_avg_100": 10.0}
        assert windows["full"] == windows["again"] == {"episode_reward_avg_100": 0.5, "episode_length_avg_100": 20.0}


SUMS = (
    *("kept_trajectories", "kept_steps", "unsolved_steps", "avoided_steps", "imitated_steps", "groups"),
    *("left_not_chosen", "left_not_good", "left_in_loops", "left_alike", "left_waiting"),
)


@pytest.mark.parametrize("algorithm", ["grpo_replay", "filtered_bc", "digirl"])
def test_figures_are_those_of_the_rows_of_all_ranks(found: list[dict[str, Any]], algorithm: str) -> None:
    (own, other), alone = (
        [there["figures"][algorithm] for there in found],
        [there["figures of own alone"][algorithm] for there in found],
    )
    assert own == other
    counts = [name for name in SUMS if name in own and algorithm != "digirl"]  # its values learn from all rows
    assert {name: own[name] for name in counts} == {name: alone[0][name] + alone[1][name] for name in counts}
    assert algorithm == "digirl" or own["kept_steps"] > max(each["kept_steps"] for each in alone)


def test_a_rank_without_a_new_episode_is_not_taken_for_one_that_learns_offline(found: list[dict[str, Any]]) -> None:
    all_new, some_new = (found[0][key]["filtered_bc"] for key in ("figures", "nothing new on rank 1"))
    assert some_new["unsolved_steps"] == all_new["unsolved_steps"] > 0
    assert some_new["kept_steps"] == all_new["kept_steps"] and some_new["avoided_steps"] < all_new["avoided_steps"]


def test_bytes_are_gathered_on_rank_0_and_broadcast_from_it(found: list[dict[str, Any]]) -> None:
    assert found[0]["gathered"] == ["", "of 1"] and found[1]["gathered"] == []
    assert found[0]["broadcast"] == found[1]["broadcast"] == "word"


def test_bytes_may_be_many_and_do_not_fill_the_store(found: list[dict[str, Any]]) -> None:
    many = 64 << 20
    assert found[0]["large"]["gathered"] == [[many, True], [many + 5, True]] and found[1]["large"]["gathered"] == []
    assert found[0]["large"]["broadcast"] == found[1]["large"]["broadcast"] == [many, True]
    assert found[0]["large"]["store"] < 1 << 20


def test_b1_weights_that_differ_are_named_by_rank(found: list[dict[str, Any]]) -> None:
    assert all("the weights of rank 1 differ" in there["astray"] for there in found)


def test_b8_a_gate_names_who_did_not_come(found: list[dict[str, Any]]) -> None:
    assert found[1]["late"] == "rank 0 did not come to 'the end of the evaluation' within 2 s"
