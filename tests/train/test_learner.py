"""What a rank acts with after an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from user_classes import Coin, Counter

from digirl_dist.errors import TrainingError
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.rank import Rank
from digirl_dist.report.metrics import Metrics, Outcomes
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.tasks import SEEDS
from digirl_dist.train.loop import IterationReport, RankLearner
from digirl_dist.train.reporter import RankZeroReporter, StreamEvaluator
from digirl_dist.train.streams import Stream
from digirl_dist.trajectory import Trajectory


class Careless:
    """An algorithm of a user's that leaves the agent as it learned."""

    def __init__(self, agent: Coin) -> None:
        self._agent = agent

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        self._agent.train()
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """It has none."""


@pytest.fixture
def group() -> Iterator[Group]:
    """Of the only rank there is."""
    with joined(Rank(), "cpu", GroupLimits()) as alone:
        yield alone


def stream(share: Any = "train") -> Stream:
    return Stream(Counter(), Counter.tasks("", "train"), "rank0", 0, seed=5, share=share)


def test_a_rank_acts_in_evaluation_mode_whatever_its_algorithm_left(group: Group) -> None:
    coin = Coin(Counter.spec)
    learner = RankLearner(group, coin, Careless(coin), 0)
    learner.update(0, [stream().episode(0)], [stream().episode(0)])
    assert not coin.training


def test_an_iteration_in_which_no_episode_ended_is_none_of_offline_learning(group: Group) -> None:
    class Counts(Careless):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
            return {"fresh": float(len(fresh))}

    coin, episode = Coin(Counter.spec), stream().episode(0)
    learner = RankLearner(group, coin, Counts(coin), 0)
    assert learner.update(0, [], [episode]) == ({}, None)
    assert learner.update(1, [episode], [episode, episode]) == ({"fresh": 1.0}, None)


@pytest.mark.parametrize("returned", [None, {"loss": None}])
def test_figures_that_are_none_are_refused_by_the_algorithms_name(returned: Any, group: Group) -> None:
    class Returns(Careless):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Any:
            return returned

    coin = Coin(Counter.spec)
    learner = RankLearner(group, coin, Returns(coin), 0)
    with pytest.raises(TrainingError, match="Returns.update returned .*, not a dict of numbers by name"):
        learner.update(0, [stream().episode(0)], [stream().episode(0)])


def test_a_weight_that_is_no_number_is_no_weight_of_a_checkpoint(group: Group) -> None:
    class Breaks(Careless):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
            self._agent.logits.data += math.nan
            return {}

    coin = Coin(Counter.spec)
    learner = RankLearner(group, coin, Breaks(coin), 0)
    with pytest.raises(TrainingError, match="the weight logits is not finite"):
        learner.update(0, [stream().episode(0)], [stream().episode(0)])


def test_a_figure_named_like_one_of_the_runs_own_is_refused_before_anything_is_stored(
    tmp_path: Path, group: Group
) -> None:
    coin = Coin(Counter.spec)
    reporter = RankZeroReporter(
        RankLearner(group, coin, Careless(coin), 0),
        StreamEvaluator(stream, None, every=0, episodes=0),
        tmp_path / "trajectories",
        Checkpoints(tmp_path / "checkpoints"),
        Metrics(tmp_path / "metrics.jsonl"),
        log=None,  # type: ignore[arg-type]  # it comes last
        say=print,
        steps=1,
        outcomes=Outcomes(told=True),
    )
    with pytest.raises(TrainingError, match="the algorithm's figure 'iteration' has the name of one of the run's own"):
        reporter.report(IterationReport(3, {"iteration": 5.0}, [stream().episode(3)]))
    assert not list(tmp_path.iterdir())


def test_the_stream_that_evaluates_has_seeds_of_its_own() -> None:
    assert stream().episode(0).ticket.seed in SEEDS["train"]
    assert stream("validate").episode(0).ticket.seed in SEEDS["validate"]


def test_endless_evaluations_return_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("digirl_dist.train.streams.MOST_STEPS", 5)
    made: list[Stream] = []

    def endless() -> Stream:
        made.append(Stream(Counter(10**9), Counter.tasks("", "train"), "rank0", 0, seed=5, share="validate"))
        return made[-1]

    assert StreamEvaluator(endless, None, every=1, episodes=3).figures(Coin(Counter.spec), 0) == {}
    assert len(made) == 1 and made[0].has_endless, "the first episode says it all"
    bounded = StreamEvaluator(endless, 4, every=1, episodes=3).figures(Coin(Counter.spec), 0)
    assert set(bounded) == {"eval_reward_mean", "eval_success_rate"}
