"""DigiRL's formulas against independent computations, and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from user_classes import Coin, Counter

from digirl_dist.algorithm.advantages import (
    doubly_robust_advantages,
    released_advantages,
    returns_to_go,
)
from digirl_dist.algorithm.digirl import DigiRL, Rule, paper_rule, released_rule, stack
from digirl_dist.algorithm.hindsight import Experience, Hindsight
from digirl_dist.algorithm.selection import held_out, top_quantile
from digirl_dist.algorithm.table import HELD_OUT, IN_LOOPS, UNSOLVED
from digirl_dist.algorithm.values import SuccessValue, calibration_error, calibration_gaps, two_class_loss
from digirl_dist.settings import DigirlSettings, ValueSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

UNIT = st.floats(0, 1, width=32)


def measuring_nothing(**settings: Any) -> DigirlSettings:
    """No episode is held out."""
    found = DigirlSettings(**settings)
    found.VALIDATION_SHARE = 0.0  # type: ignore[misc]
    return found


def episode(index: int, actions: list[int]) -> Trajectory:
    """Rewarded at the end if its last action is 1."""
    last = len(actions) - 1
    steps = [
        Step(Observation("", None, np.array([at, index % 2], np.float32)), action, -0.7, 0.0, at == last, False)
        for at, action in enumerate(actions)
    ]
    won = actions[-1] == 1
    steps[-1] = Step(steps[-1].observation, actions[-1], -0.7, float(won), True, False)
    end = Observation("", None, np.array([len(actions), index % 2], np.float32))
    return Trajectory(Ticket(0, index, Task("t"), index, 0), str(index), "w", 0, steps, end, won)


def batch(seed: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    return [episode(index, rng.integers(2, size=3).tolist()) for index in range(40)]


def made(advantage: str = "paper", warmup_iterations: int = 0) -> DigiRL:
    value = ValueSettings(epochs=2)
    settings = DigirlSettings(advantage=advantage, warmup_iterations=warmup_iterations, step_value=value)
    return DigiRL(Coin(Counter.spec), settings, seed=0, rule=settings.rule(None))


def good_steps(rule: Rule, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.asarray(rule.advantages(rewards, values) > rule.threshold(len(rewards)))


@given(
    st.integers(1, 12).flatmap(
        lambda steps: st.tuples(
            arrays.arrays(np.float64, steps, elements=UNIT), arrays.arrays(np.float64, steps + 1, elements=UNIT), UNIT
        )
    )
)
def test_the_step_advantage_is_doubly_robust(drawn: tuple[np.ndarray, np.ndarray, float]) -> None:
    rewards, values, lam = drawn
    total = len(rewards)
    expected = []
    for h in range(1, total + 1):
        outcome = lam ** (total - h)
        bootstrap = values[h] + rewards[h - 1] - values[h - 1]
        expected.append(outcome * rewards[total - 1] + (1 - outcome) * bootstrap)
    assert np.allclose(doubly_robust_advantages(rewards, values, lam), expected, atol=1e-6)


@given(
    st.integers(1, 12).flatmap(
        lambda steps: st.tuples(
            arrays.arrays(np.float64, steps, elements=UNIT),
            arrays.arrays(np.float64, steps + 1, elements=UNIT),
            arrays.arrays(np.float64, steps + 1, elements=UNIT),
            UNIT,
        )
    )
)
def test_the_released_rule_takes_steps_whose_clamped_advantage_is_positive(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, float],
) -> None:
    rewards, first, second, gamma = drawn
    values, total = np.minimum(first, second), len(rewards)
    expected = []
    for h in range(total):
        togo = sum(rewards[k] * gamma ** (k - h) for k in range(h, total))
        advantage = min(first[h + 1], second[h + 1]) - min(first[h], second[h]) - 0.05 + rewards[h] + togo
        expected.append(min(max(advantage, 0.0), 1.0))
    returns = np.array(returns_to_go(rewards.tolist(), gamma))
    found = released_advantages(rewards, values, returns, 0.05)
    assert np.allclose(found, expected, atol=1e-6)
    clear = np.abs(np.array(expected)) > 1e-9
    assert (good_steps(released_rule(gamma), rewards, values) == (np.array(expected) > 0))[clear].all()


@given(
    arrays.arrays(np.float64, 9, elements=UNIT),
    arrays.arrays(np.float64, 10, elements=UNIT),
    UNIT,
    st.none() | st.integers(9, 20),
)
def test_the_paper_s_rule_takes_steps_whose_advantage_exceeds_one_over_the_horizon(
    rewards: np.ndarray, values: np.ndarray, lam: float, horizon: int | None
) -> None:
    trust = [lam ** (9 - h) for h in range(1, 10)]
    expected = [
        share * rewards[-1] + (1 - share) * (values[h + 1] + rewards[h] - values[h]) for h, share in enumerate(trust)
    ]
    threshold = 1 / (9 if horizon is None else horizon)
    clear = np.abs(np.array(expected) - threshold) > 1e-9
    assert (good_steps(paper_rule(lam, horizon), rewards, values) == (np.array(expected) > threshold))[clear].all()


def test_a_success_in_the_first_step_is_imitated_by_the_paper_s_rule() -> None:
    assert good_steps(paper_rule(0.5, horizon=8), np.array([1.0]), np.array([0.9, 0.9])).tolist() == [True]


@pytest.mark.parametrize("horizon", [None, 1])
def test_where_one_step_is_all_there_is_a_success_is_good_and_a_failure_is_not(horizon: int | None) -> None:
    rule = paper_rule(0.5, horizon)
    assert [good_steps(rule, np.array([end]), np.array([0.9, 0.9])).tolist() for end in (1.0, 0.0)] == [[True], [False]]


@given(
    st.integers(1, 40).flatmap(lambda count: arrays.arrays(np.float64, count, elements=st.floats(-1, 1, width=16))),
    st.floats(0.05, 0.95),
)
def test_the_top_decile_is_at_or_above_the_interpolated_quantile(scores: np.ndarray, share: float) -> None:
    ordered, place = sorted(scores), (1 - share) * (len(scores) - 1)
    below = int(place)
    above = min(below + 1, len(scores) - 1)
    cutoff = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    clear = {index for index, score in enumerate(scores) if abs(score - cutoff) > 1e-9}
    kept = set(top_quantile(scores, share))
    assert kept & clear == {index for index in clear if scores[index] > cutoff} and kept


def test_offline_the_released_rule_ranks_by_return_alone() -> None:
    returns, values = np.array([1.0, 0.0]), np.array([0.9, 0.0])
    rule = released_rule(0.5)
    assert rule.scores(returns, values, offline=True).tolist() == [1.0, 0.0]
    np.testing.assert_allclose(rule.scores(returns, values, offline=False), [0.1, -1e-4])
    np.testing.assert_allclose(paper_rule(0.5).scores(returns, values, offline=True), [0.1, 0.0])


def test_frames_are_stacked_oldest_first_and_the_first_repeats() -> None:
    features = torch.tensor([[1.0], [2.0], [3.0]])
    assert stack(features, 2).tolist() == [[1, 1], [1, 2], [2, 3]]
    assert stack(features, 3).tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3]]
    assert torch.equal(stack(features, 1), features)


def test_a_score_that_is_no_number_hides_no_other() -> None:
    assert top_quantile(np.array([1.0, np.nan, 2.0, np.inf]), 0.5) == [2]
    assert top_quantile(np.array([np.nan]), 1.0) == []


def test_of_two_critics_the_lesser_counts_and_both_learn() -> None:
    value = SuccessValue(3, ValueSettings(), seed=0, critics=2)
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    loss = value.fit(features, [True, False] * 3).loss
    of_each = [critic(features).softmax(dim=1)[:, 1] for critic in value._critics]
    assert 0.6 < loss < 0.75 and not torch.equal(*of_each)
    assert torch.equal(value(features), torch.minimum(*of_each))


def test_a_fifth_of_the_episodes_is_held_out_and_an_episode_keeps_its_side() -> None:
    episodes = [episode(index, [1]) for index in range(1000)]
    held = [held_out(each, 0.2) for each in episodes]
    assert 150 < sum(held) < 250 and held == [held_out(each, 0.2) for each in episodes]
    assert not any(held_out(each, 0.0) for each in episodes)


@pytest.mark.parametrize("advantage", ["paper", "code"])
def test_held_out_episodes_train_nothing_but_are_measured(advantage: str) -> None:
    data = batch(0)
    altered = [episode(each.ticket.index, [0, 0]) if held_out(each, 0.2) else each for each in data]
    one, other = made(advantage=advantage), made(advantage=advantage)
    (figures, table), (others, _) = one.update(data, data), other.update(altered, altered)
    assert {row.episode.episode_id for row in table if row.outcome == HELD_OUT and not row.learned} == {
        each.episode_id for each in data if held_out(each, 0.2)
    }
    assert torch.equal(one._agent.state_dict()["logits"], other._agent.state_dict()["logits"])
    assert figures["actor_loss"] == others["actor_loss"] and figures["step_value_loss"] == others["step_value_loss"]
    assert figures["step_value_validation_loss"] != others["step_value_validation_loss"]
    assert 0 <= figures["instruction_value_validation_accuracy"] <= 1


def test_steps_that_changed_nothing_are_never_good_unless_one_asks_for_it_as_published() -> None:
    """Both steps before the rewarded one look good to the paper's rule; after the first, nothing had changed."""
    seen = [Observation("", None, np.array([at, 0], np.float32)) for at in (0, 0, 1, 2)]
    steps = [Step(seen[at], 1, -0.7, float(at == 2), at == 2, False) for at in range(3)]
    won = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen[3], True)
    for drops, expected in ((True, 1), (False, 2)):
        rule, experience = paper_rule(0.71), Experience(erase_loops=drops)
        algorithm = DigiRL(Coin(Counter.spec), DigirlSettings(), seed=0, rule=rule, experience=experience)
        (looked_at,), _ = algorithm._look_at([won])
        rows = algorithm._rows(looked_at, weight=1.0)
        assert [row.observation for row in rows if row.weight][:expected] == seen[2 - expected : 2]
        assert [row.outcome for row in rows if not row.weight] == [IN_LOOPS] * (2 - expected)


def test_episodes_are_chosen_by_what_was_expected_before_their_outcome_was_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The values begin at 0.5 everywhere, so in the first update the scores are those of the returns alone."""
    algorithm, scores = made(advantage="code"), []
    monkeypatch.setattr(
        "digirl_dist.algorithm.digirl.top_quantile",
        lambda found, share: scores.append(found) or top_quantile(found, share),
    )
    algorithm.update(batch(0), batch(0))
    assert set(scores[0].tolist()) == {-0.5, 0.5}


def test_an_episode_weighs_by_how_much_better_it_ended_than_expected_and_one_that_did_not_is_left() -> None:
    """Of tasks that nearly always succeed, a success is no news; failures are chosen nowhere."""
    easy, hard = [episode(2 * n, [1]) for n in range(20)], [episode(2 * n + 1, [int(n % 5 == 0)]) for n in range(20)]
    settings = measuring_nothing(top_share=1.0, instruction_value=ValueSettings(epochs=200))
    algorithm = DigiRL(Coin(Counter.spec), settings, seed=0, rule=paper_rule(0.5, 4))
    algorithm.update([*easy, *hard], [*easy, *hard])
    seen, _ = algorithm._look_at([*easy, *hard])
    rows = algorithm._judged(seen, algorithm._scores(seen, offline=False))
    weights = {row.episode.episode_id: row.weight for row in rows if row.weight}
    assert weights.keys() == {one.episode_id for one in [*easy, *hard] if one.success}
    assert max(weights[one.episode_id] for one in easy) < 0.3 < 0.6 < weights[hard[0].episode_id]


def test_what_is_relabelled_makes_no_instruction_look_easy() -> None:
    asked = Task("t", "Do this")
    failed = [replace(one, ticket=replace(one.ticket, task=asked)) for one in (episode(n, [0, 0]) for n in range(40))]
    hindsight = Hindsight((), 3, lambda one: [(1, f"another task than {one.episode_id}")])
    settings = measuring_nothing(instruction_value=ValueSettings(epochs=200))
    algorithm = DigiRL(Coin(Counter.spec), settings, seed=0, experience=Experience(hindsight))
    assert algorithm.update(failed, failed).figures["relabelled_share"] == 0.5
    starts = torch.stack([torch.tensor([0.0, parity]) for parity in (0.0, 1.0)])
    assert algorithm._instruction_value(starts).amax() < 0.1


def test_offline_data_is_always_learned_from_beside_the_newest_episodes() -> None:
    offline = [replace(one, ticket=replace(one.ticket, iteration=~at)) for at, one in enumerate(batch(0))]
    fresh = batch(1)
    algorithm = DigiRL(Coin(Counter.spec), measuring_nothing(value_episodes=5), seed=0)
    _, table = algorithm.update(fresh, [*offline, *fresh])
    assert {id(row.episode) for row in table if row.outcome != UNSOLVED} == set(map(id, [*offline, *fresh[-5:]]))


def test_while_it_warms_up_only_the_values_learn() -> None:
    algorithm = made(warmup_iterations=1)
    first, _ = algorithm.update(batch(0), batch(0))
    assert first["kept_steps"] == 0 and algorithm._agent.log_prob([], [1]).item() == pytest.approx(np.log(0.5))
    assert first["instruction_value_loss"] > 0 and algorithm._instruction_value(torch.eye(2)).tolist() != [0.5, 0.5]
    assert algorithm.update(batch(0), batch(0)).figures["kept_steps"] > 0


@given(
    arrays.arrays(np.float64, (6, 2), elements=st.floats(-5, 5)), st.lists(st.integers(0, 1), min_size=6, max_size=6)
)
def test_the_value_loss_is_the_cross_entropy_of_two_classes(logits: np.ndarray, labels: list[int]) -> None:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    expected = -np.mean([row[label] for row, label in zip(log_probs, labels, strict=True)])
    assert float(two_class_loss(torch.from_numpy(logits), torch.tensor(labels, dtype=torch.float))) == pytest.approx(
        expected, abs=1e-6
    )


@given(arrays.arrays(np.float64, 12, elements=UNIT), arrays.arrays(np.bool_, 12))
def test_the_calibration_error_is_the_gap_between_saying_and_coming_true(said: np.ndarray, true: np.ndarray) -> None:
    expected = 0.0
    for number in range(10):
        inside = [k for k in range(12) if number / 10 <= said[k] < (number + 1) / 10 or (number == 9 and said[k] == 1)]
        if inside:
            share, mean = sum(true[k] for k in inside) / len(inside), sum(said[k] for k in inside) / len(inside)
            expected += len(inside) / 12 * abs(share - mean)
    near_an_edge = np.abs(said * 10 - np.round(said * 10)).min() < 1e-9 and not np.isin(said, (0.0, 1.0)).all()
    assert near_an_edge or calibration_error(calibration_gaps(said, true), 12) == pytest.approx(expected, abs=1e-6)


def test_a_value_function_learns_what_succeeds() -> None:
    value = SuccessValue(2, ValueSettings(epochs=200, learning_rate=1e-2), seed=0)
    lost, won = [0.0, 1.0], [1.0, 0.0]
    assert value(torch.tensor([lost, won])).tolist() == [0.5, 0.5]
    value.fit(torch.tensor([lost, won] * 8), [False, True] * 8)
    of_lost, of_won = value(torch.tensor([lost, won])).tolist()
    assert of_lost < 0.1 < 0.9 < of_won


def test_value_functions_read_what_the_agent_gives_them_in_place_of_its_features() -> None:
    class Blind(Coin):
        """Its features are the same everywhere."""

        critic_size = 3

        def features(self, observations: Sequence[Observation]) -> torch.Tensor:
            return torch.zeros(len(observations), self.feature_size)

        def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
            return torch.stack([torch.eye(3)[min(int(each.vector[0]), 2)] for each in observations])

    value = ValueSettings(epochs=100, learning_rate=1e-2)
    algorithm = DigiRL(Blind(Counter.spec), DigirlSettings(step_value=value), seed=0)
    won_at_once = [episode(index, [1]) for index in range(20)]
    lost_later = [episode(index, [0, 0]) for index in range(20, 40)]
    algorithm.update([*won_at_once, *lost_later], [*won_at_once, *lost_later])
    at_first, later = algorithm._step_value(torch.eye(3)[torch.tensor([[0, 0], [0, 1]])].flatten(1)).tolist()
    assert later < 0.1 < 0.4 < at_first < 0.6
