"""GRPO's formulas against independent computations, its groups, and its correction for older policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from user_classes import Coin, Counter

from digirl_dist.algorithm.advantages import ROUNDING, group_advantages
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.grpo_replay import GrpoReplay
from digirl_dist.algorithm.losses import Compared, clipped_loss, importance_of
from digirl_dist.algorithm.optimizer import Drawn
from digirl_dist.algorithm.options import GrpoActorSettings, GrpoOptions, Loss
from digirl_dist.algorithm.ppo import PPO
from digirl_dist.algorithm.selection import completed_groups, expected_returns, surpluses
from digirl_dist.algorithm.table import KEPT, Row
from digirl_dist.settings import GrpoReplaySettings, GrpoSettings, PpoSettings
from digirl_dist.storage import parquet
from digirl_dist.tasks import Plan, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory, float32

ONES = torch.ones(7)


def column(values: np.ndarray) -> torch.Tensor:
    """Of actions that are one token each: [N, 1]."""
    return torch.tensor(values)[:, None]


def actions(old: np.ndarray, advantages: np.ndarray, weights: np.ndarray) -> Compared:
    return Compared(column(old), ONES[:, None], column(advantages), torch.tensor(weights))


UNIT = st.floats(0, 1, width=32)
LOG_PROB = st.floats(-6, 0, width=32)


def vectors(elements: st.SearchStrategy[float], size: int = 7) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float64, size, elements=elements)


@given(vectors(st.floats(-3, 3, width=32)))
def test_the_group_advantage_is_the_return_against_mean_and_deviation(returns: np.ndarray) -> None:
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in returns) / len(returns))
    if max(returns) - min(returns) <= ROUNDING * max(map(abs, returns)):
        expected = [0.0] * len(returns)
    else:
        size = math.sqrt(sum(each**2 for each in returns) / len(returns))
        expected = [(each - mean) / (deviation + 1e-4 * size) for each in returns]
    assert np.allclose(group_advantages(returns), expected, atol=1e-6)


def test_differences_that_are_tiny_beside_the_returns_are_no_advantage() -> None:
    assert np.abs(group_advantages(np.array([10.0, 10.0, 10.0, 10.00001]))).max() < 0.1
    assert group_advantages(np.array([0.0, 0.0, 0.0, 1.0])).max() == pytest.approx(3**0.5, rel=1e-3)


@pytest.mark.component
@given(vectors(LOG_PROB), vectors(LOG_PROB), vectors(st.floats(-2, 2, width=32)), vectors(UNIT), UNIT, st.floats(0, 2))
def test_the_clipped_loss_is_that_of_its_formula(
    new: np.ndarray, old: np.ndarray, advantages: np.ndarray, weights: np.ndarray, low: float, high: float
) -> None:
    terms = []
    for new_one, old_one, advantage, weight in zip(new, old, advantages, weights, strict=True):
        ratio = math.exp(new_one - old_one)
        clipped = min(max(ratio, 1 - low), 1 + high)
        gain = min(ratio * advantage, clipped * advantage)
        terms.append(weight * (max(gain, max(3.0, 1 + high) * advantage) if advantage < 0 else gain))
    batch, settings = actions(old, advantages, weights), GrpoOptions(clip_low=low, clip_high=high)
    found = float(clipped_loss(column(new), ONES[:, None].bool(), batch, settings)[0])
    assert found == pytest.approx(-sum(terms) / len(terms), rel=1e-6, abs=1e-6)


@given(vectors(LOG_PROB), vectors(LOG_PROB), st.floats(0.5, 5))
def test_the_importance_of_a_step_is_its_ratio_truncated(now: np.ndarray, acted: np.ndarray, most: float) -> None:
    expected = [min(math.exp(one) / math.exp(other), most) for one, other in zip(now, acted, strict=True)]
    found = importance_of(column(now), column(acted), ONES[:, None].bool(), Loss.token, most)
    assert np.allclose(found[:, 0], expected, atol=1e-6)


def episode(ticket: Ticket, actions: list[int], log_prob: float = math.log(0.5)) -> Trajectory:
    """Rewarded at the end if its last action is 1."""
    seen = Observation("", None, np.zeros(2, np.float32))
    won, last = actions[-1] == 1, len(actions) - 1
    steps = [
        Step(seen, action, log_prob, float(won and at == last), at == last, False) for at, action in enumerate(actions)
    ]
    return Trajectory(ticket, f"e{ticket.index}", "w", 0, steps, seen, won)


def group(results: list[int], version: int = 4, log_prob: float = math.log(0.5)) -> list[Trajectory]:
    """Episodes of iteration 4 from one start, collected by policy ``version``."""
    tickets = [Ticket(4, index, Task("t"), 9, version) for index in range(len(results))]
    return [episode(ticket, [result], log_prob) for ticket, result in zip(tickets, results, strict=True)]


def made(**settings: Any) -> tuple[Coin, Grpo]:
    coin = Coin(Counter.spec)
    actor = GrpoActorSettings(learning_rate=0.01, epochs=1)
    return coin, Grpo(coin, GrpoSettings(**{"group_size": 4, "actor": actor, **settings}), seed=0)


def mixed(kind: type[Coin] = Coin, **settings: Any) -> tuple[Coin, GrpoReplay]:
    coin = kind(Counter.spec)
    actor = GrpoActorSettings(learning_rate=0.01, epochs=1)
    return coin, GrpoReplay(coin, GrpoReplaySettings(**{"actor": actor, **settings}), seed=0)


def learn(grpo: Grpo | PPO, fresh: list[Trajectory]) -> dict[str, float]:
    """An update in which nothing is remembered but what is fresh."""
    return dict(grpo.update(fresh, fresh).figures)


def test_it_learns_the_action_that_beats_its_group() -> None:
    coin, grpo = made()
    figures = learn(grpo, group([1, 0, 1, 0]))
    assert figures["kept_trajectories"] == 4 and figures["policy_lag"] == 0
    assert coin.log_prob([], [1]).item() > math.log(0.5) > coin.log_prob([], [0]).item()


class Blurred(Coin):
    """Regularises in training mode, as an agent with dropout or shifted pictures does."""

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        return super().log_prob(observations, actions) - float(self.training)


def test_ratios_are_those_of_evaluation_mode() -> None:
    """In the first step every ratio is 1, so advantages of a group add up to 0."""
    blurred = Blurred(Counter.spec)
    grpo = Grpo(blurred.train(), GrpoSettings(group_size=4, actor=GrpoActorSettings(epochs=1)), seed=0)
    assert learn(grpo, group([1, 0, 1, 0]))["actor_loss"] == pytest.approx(0, abs=1e-6)
    ppo = PPO(blurred.train(), PpoSettings(epochs=1, value_weight=0.0), seed=0)
    log_prob = blurred.train(False).log_prob([], [1]).item()
    blurred.train()
    assert ppo.update(group([1, 1], log_prob=log_prob), []).figures["ppo_loss"] == pytest.approx(0, abs=1e-6)
    assert not blurred.training


def test_what_is_imitated_is_fitted_in_training_mode() -> None:
    """Beside ratios of evaluation mode, in one minibatch: each imitated step costs what the blur adds."""
    sharp, blurred = (mixed(kind, actor=GrpoActorSettings(epochs=1, batch_size=64))[1] for kind in (Coin, Blurred))
    fresh = group([1, 0, 1, 0])
    rows = len(fresh) + sum(one.reward > 0 for one in fresh)
    added = learn(blurred, fresh)["actor_loss"] - learn(sharp, fresh)["actor_loss"]
    assert added == pytest.approx((rows - len(fresh)) / rows, abs=1e-6)


def test_groups_that_came_out_alike_teach_nothing() -> None:
    coin, grpo = made()
    figures = learn(grpo, group([1, 1, 1, 1]))
    assert figures["kept_trajectories"] == 0 and figures["groups_alike_share"] == 1.0 and figures["left_alike"] == 4
    assert coin.logits.tolist() == [0.0, 0.0]


def test_episodes_are_compared_with_those_of_their_own_task_alone() -> None:
    """Alone in its group, an episode has nothing to be better than."""
    coin, grpo = made()
    apart = [episode(Ticket(4, index, Task(str(index)), 9, 4), [index % 2]) for index in range(4)]
    assert learn(grpo, apart)["kept_trajectories"] == 0
    assert coin.logits.tolist() == [0.0, 0.0]


def test_the_loss_of_all_rows_is_the_mean_over_episodes_of_the_mean_over_their_steps() -> None:
    _, grpo = made(group_size=3)
    fresh = [
        episode(Ticket(4, 0, Task("t"), 9, 4), [0, 0, 1]),
        episode(Ticket(4, 1, Task("t"), 9, 4), [0]),
        episode(Ticket(4, 2, Task("t"), 9, 4), [1, 1], log_prob=math.log(0.48)),
    ]
    returns = np.array([1.0, 0.0, 1.0])
    advantages = (returns - returns.mean()) / (returns.std() + 1e-4 * np.sqrt(np.square(returns).mean()))
    of_episodes = []
    for trajectory, advantage in zip(fresh, advantages, strict=True):
        corrections = [min(0.5 / math.exp(step.log_prob), 2.0) for step in trajectory.steps]
        of_episodes.append(sum(correction * advantage for correction in corrections) / len(corrections))
    figures = learn(grpo, fresh)
    assert figures["actor_loss"] == pytest.approx(-sum(of_episodes) / 3, abs=1e-6)


@pytest.mark.parametrize(("version", "lag"), [(3, 1.0), (4, 0.0)])
def test_steps_of_a_policy_that_differs_count_by_their_truncated_ratio(version: int, lag: float) -> None:
    """It may be older, or the same in another precision. The one that learns gives each action 0.5."""
    _, grpo = made(group_size=2)
    for acted, weight in ((0.8, 0.5 / 0.8), (0.01, 2.0)):
        members = group([1, 0], version=version, log_prob=math.log(acted))
        rows = [Row(each, 0, KEPT, "") for each in members]
        np.testing.assert_allclose(grpo._batch(rows, Drawn([], [])).old[:, 0], [math.log(0.5)] * 2, atol=1e-6)
        np.testing.assert_allclose([row.weight for row in rows], [weight] * 2, atol=1e-6)
    assert learn(grpo, group([1, 0], version=version))["policy_lag"] == lag


@pytest.mark.parametrize("tokens", [False, True])
def test_the_policy_that_acts_is_compared_with_the_one_that_learns_where_they_are_the_same(tokens: bool) -> None:
    """The one that learns gives each action 0.5. What an older one said is no error."""
    _, grpo = made(group_size=2)
    members = group([1, 0], version=4, log_prob=math.log(0.4))
    if tokens:
        told = [replace(step, token_log_probs=[step.log_prob]) for each in members for step in each.steps]
        members = [replace(each, steps=[step]) for each, step in zip(members, told, strict=True)]
    assert learn(grpo, members)["mismatch"] == pytest.approx(math.log(0.5 / 0.4), abs=1e-6)
    assert "mismatch" not in learn(grpo, group([1, 0], version=3, log_prob=math.log(0.4)))


def test_a_group_that_an_iteration_closed_without_is_learned_from_once_it_is_whole() -> None:
    """Its longest episode comes an iteration later; without it, short episodes would be favoured."""
    first, others = group([1, 0, 0, 0])[:3], group([1, 0, 0, 0])[3:]
    coin, grpo = made()
    early, _ = grpo.update(first, first)
    assert early["kept_trajectories"] == 0 and early["left_waiting"] == 3 and coin.logits.tolist() == [0.0, 0.0]
    alone = episode(Ticket(5, 0, Task("t"), 10, 5), [1])
    figures, _ = grpo.update([*others, alone], [*first, *others, alone])
    assert figures["kept_trajectories"] == 4 and figures["left_waiting"] == 1 and figures["policy_lag"] == 0.5
    assert grpo.update([alone], [*first, *others, alone]).figures["kept_trajectories"] == 0, "none is used twice"


def test_a_group_counts_with_the_members_it_has_once_none_of_its_tickets_is_open() -> None:
    members, offline = group([1, 0, 0]), replace(group([1])[0], episode_id="of another run")
    last = Ticket(4, 3, Task("t"), 9, 4)
    for before, after, kept in (([], [last], 0), ([last], [last], 0), ([], [], 3), ([last], [], 3)):
        _, grpo = made()
        grpo.expect(before, after)
        assert learn(grpo, members)["kept_trajectories"] == kept
    fresh = [episode(Ticket(5, 0, Task("u"), 1, 5), [1])]
    for before, kept in (([last], 3), ([], 0)):
        _, grpo = made()
        grpo.expect(before, [])
        figures, _ = grpo.update(fresh, [offline, *members, *fresh])
        assert figures["kept_trajectories"] == kept, "also where its last ticket brings nothing, and only once"
    whole = group([1, 0, 0, 0])
    assert completed_groups(whole, [offline, *whole], 4) == [whole]


def test_figures_count_what_was_learned_from_and_nothing_fresh_is_left_out() -> None:
    fresh = group([1, 0, 1, 0])
    _, grpo = mixed(actor=GrpoActorSettings(learning_rate=0.01, epochs=1, max_examples=6))
    earlier = [episode(Ticket(1, index, Task(f"{index}"), index, 1), [0] * 4 + [1]) for index in range(9)]
    figures, _ = grpo.update(fresh, [*earlier, *fresh])
    assert figures["kept_steps"] == 4 and figures["left_undrawn"] == figures["skipped_steps"] == 0
    assert figures["imitated_steps"] + figures["unsolved_steps"] == 2


def test_what_is_expected_of_a_task_is_the_mean_of_its_newest_episodes() -> None:
    rng = np.random.default_rng(0)
    names, actions = rng.choice(["a", "b"], 60).tolist(), rng.integers(2, size=60).tolist()
    tickets = [Ticket(0, index, Task(name), index, 0) for index, name in enumerate(names)]
    found = expected_returns([episode(ticket, [action]) for ticket, action in zip(tickets, actions, strict=True)])
    for task in ("a", "b"):
        own = [action for name, action in zip(names, actions, strict=True) if name == task]
        assert found[task] == pytest.approx(sum(own[-16:]) / 16)
    assert surpluses([1.0, 0.0, 1.0], ["a", "a", "new"], {"a": 0.25}) == [0.75, 0.0, 1.0]


def test_returns_that_differ_by_the_rounding_of_their_rewards_alone_teach_nothing() -> None:
    tenth, fifth, third, whole = (float32(reward) for reward in (0.1, 0.2, 1 / 3, 1.0))
    for one, other in ((tenth + fifth, float32(0.3)), (3 * third, whole), (-tenth - fifth, float32(-0.3))):
        assert one != other
        assert group_advantages(np.array([one, other, one, other])).tolist() == [0.0] * 4
        assert surpluses([one, other], ["a", "a"], {"a": (one + other) / 2}) == [0.0, 0.0]
    earned = 2 * [[tenth, fifth], [0.0, float32(0.3)]]
    fresh = [
        replace(each, steps=[replace(each.steps[0], reward=reward) for reward in rewards])
        for each, rewards in zip(group([0, 0, 0, 0]), earned, strict=True)
    ]
    assert learn(made()[1], fresh)["groups_alike_share"] == 1.0


def test_successes_of_earlier_iterations_are_imitated_the_more_the_less_they_were_expected() -> None:
    earlier = [episode(Ticket(1, index, Task("hard"), index, 1), [int(index == 0)]) for index in range(4)]
    mastered = [episode(Ticket(1, index, Task("easy"), index, 1), [1]) for index in range(4)]
    coin, grpo = mixed(replay_weight=3.0)
    (row,), _ = grpo._imitated([*earlier, *mastered])
    assert row.weight == 0.75
    grpo._weigh_imitated([row])
    assert row.weight == 3.0
    figures, _ = grpo.update([], [*earlier, *mastered])
    assert figures["imitated_steps"] == 1 and figures["kept_steps"] == 0
    assert coin.log_prob([], [1]).item() > math.log(0.5)


def test_an_episode_whose_group_is_not_complete_is_explained() -> None:
    _, grpo = made()
    [alone] = group([0])
    [row] = grpo.update([alone], [alone]).rows
    assert not row.learned and row.reason == "its group is not complete yet"


def test_a_plan_in_groups_gives_each_group_one_start() -> None:
    plan = Plan([Task(str(number)) for number in range(5)], rollout_size=12, seed=3, group_size=4)
    tickets = plan.tickets(2, 2)
    starts = [(ticket.task.id, ticket.seed) for ticket in tickets]
    assert [ticket.index for ticket in tickets] == list(range(12))
    assert len(set(starts)) == 3 and all(len(set(starts[first : first + 4])) == 1 for first in (0, 4, 8))


def test_steps_or_episodes_count_alike() -> None:
    """One episode of three steps beside one of one; every ratio is 1, so the loss is the mean of the advantages."""
    fresh = [episode(Ticket(4, 0, Task("t"), 9, 4), [0, 0, 1]), episode(Ticket(4, 1, Task("t"), 9, 4), [0])]
    for per_episode, expected in ((True, 0.0), (False, -0.5)):
        _, grpo = made(group_size=2, per_episode=per_episode)
        assert learn(grpo, fresh)["actor_loss"] == pytest.approx(expected, abs=1e-3)
    _, grpo = made(group_size=2, per_episode=False, divide_by_deviation=False)
    assert learn(grpo, fresh)["actor_loss"] == pytest.approx(-0.25, abs=1e-6), "(R − mean), as in Dr. GRPO"


@pytest.mark.parametrize("name", ["kl_weight", "entropy_weight"])
def test_it_is_held_to_where_it_began_or_kept_from_certainty(name: str) -> None:
    moved = []
    for weight in (0.0, 3.0):
        actor = GrpoActorSettings(learning_rate=0.05, epochs=8, batch_size=4, **{name: weight})
        coin, grpo = made(actor=actor, clip_high=5.0)
        for _ in range(8):
            now = [coin.log_prob([], [result]).item() for result in (0, 1)]
            tickets = [Ticket(4, index, Task("t"), 9, 4) for index in range(4)]
            learn(grpo, [episode(each, [1 - each.index % 2], now[1 - each.index % 2]) for each in tickets])
        moved.append(coin.log_prob([], [1]).exp().item())
    assert moved[0] > 0.95 and 0.8 > moved[1] > 0.55


def test_a_run_that_is_continued_is_held_to_where_it_began() -> None:
    """Not to the weights that its agent is built with: those that it began with may be another run's."""
    actor = GrpoActorSettings(learning_rate=0.05, epochs=8, batch_size=4, kl_weight=3.0)
    tickets = [Ticket(4, index, Task("t"), 9, 4) for index in range(4)]
    fresh = [episode(each, [1 - each.index % 2]) for each in tickets]
    ends = []
    for built in (0.0, 2.0):
        began, first = made(actor=actor)
        learn(first, fresh)
        coin = Coin(Counter.spec)
        torch.nn.init.constant_(next(coin.parameters()), built)
        second = Grpo(coin, GrpoSettings(group_size=4, actor=actor), seed=0)
        coin.load_state_dict(began.state_dict())
        second.load_state_dict(first.state_dict())
        learn(second, fresh)
        ends.append(coin.log_prob([], [1]).item())
    assert ends[0] == ends[1]


def test_a_stored_run_is_learned_from_again_with_another_clip_and_another_loss(tmp_path: Path) -> None:
    """Nothing acts again: what the policy that acted said of each token is stored."""
    told = [[-0.4, -0.9], [-1.6], [-0.2, -0.3], [-0.7]]
    stored = []
    for one, each in zip(group([1, 0, 1, 0]), told, strict=True):
        stored.append(replace(one, steps=[replace(one.steps[0], log_prob=sum(each), token_log_probs=each)]))
    parquet.write(tmp_path / "000000.parquet", stored)
    stored = parquet.read(tmp_path / "000000.parquet")
    found = {}
    for loss in Loss:
        for clip in (0.01, 5.0):
            speaker = Speaker(Counter.spec)
            settings = GrpoSettings(group_size=4, loss=loss, clip_low=min(clip, 0.9), clip_high=clip)
            settings.actor = GrpoActorSettings(learning_rate=0.05, epochs=6, batch_size=4)
            grpo = Grpo(speaker, settings, seed=0)
            figures, rows = grpo.update(stored, stored)
            found[loss, clip] = speaker.logits.tolist()
            assert (figures["clipped_share"] > 0.1) == (clip == 0.01)
            for row, each in zip(rows, told, strict=True):
                ratios = [min(0.5 / math.exp(one), 2.0) for one in each]
                if loss is Loss.sequence:
                    ratios = [min(math.exp(len(each) * math.log(0.5) / len(each) - sum(each) / len(each)), 2.0)]
                assert row.weight == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
    assert all(found[loss, 0.01] != found[loss, 5.0] for loss in Loss)


class Speaker(Coin):
    """Writes an action as often as the stored tokens say; each has the probability that the coin gives it."""

    def token_log_probs(
        self, observations: Sequence[Observation], actions: Sequence[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        of_actions = super().log_prob(observations, actions)
        mask = torch.tensor([[True, action == 1] for action in actions])
        return of_actions[:, None].expand(-1, 2).masked_fill(~mask, 0.0), mask
