"""A step's rows on one, two and four ranks: equal updates, even parts, one exchange, nothing computed twice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from agent.vlm_ranks import BATCH, EPISODES, STEPS
from rank_launch import launch, ranks
from tiny_vlm import save_tiny_vlm

pytestmark = [pytest.mark.component, pytest.mark.nightly]

PROGRAM = Path(__file__).parent / "vlm_ranks.py"
ROWS = EPISODES * STEPS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each rank of one, two and four found with each loss."""
    folder = tmp_path_factory.mktemp("ranks")
    ended = launch(ranks(4, str(PROGRAM), str(save_tiny_vlm(folder / "model")), str(folder)))
    assert ended.status == 0, ended.out
    own = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    return {name: [each[name] for each in own if name in each] for name in own[0]}


@pytest.mark.parametrize("loss", ["token", "step", "sequence"])
@pytest.mark.parametrize("count", [2, 4])
def test_any_number_of_ranks_makes_the_same_update(found: dict[str, Any], count: int, loss: str) -> None:
    (alone,), together = found[f"1, {loss}"], found[f"{count}, {loss}"]
    assert len(together) == count
    assert all(rank["weights"] == together[0]["weights"] for rank in together), "the same bits"
    assert together[0]["weights"] == pytest.approx(alone["weights"], abs=1e-5)
    assert together[0]["figures"] == pytest.approx(alone["figures"], abs=1e-5)
    assert together[0]["row_weights"] == pytest.approx(alone["row_weights"], abs=1e-5)
    assert alone["figures"]["kept_steps"] == ROWS and alone["figures"]["kl_from_old"] != 0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_rank_has_its_part_of_each_step_and_computes_it_once(found: dict[str, Any], count: int) -> None:
    steps = math.ceil(ROWS / BATCH)
    counts = [rank["counts"] for rank in found[f"{count}, token"]]
    assert sum(each["learned"] for each in counts) == ROWS
    assert all(abs(each["learned"] - ROWS / count) <= 1 for each in counts)
    assert [each["old"] for each in counts] == [2 * each["learned"] for each in counts], "old ones, and the start's"
    assert sum(each["pictures"] for each in counts) == ROWS, "every screen passes the processor once"
    assert all(each.get("gradients", 0) == (steps if count > 1 else 0) for each in counts), "one exchange per step"
