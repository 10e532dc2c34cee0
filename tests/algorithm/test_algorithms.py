"""What the algorithms choose, what they minimise, and that they can be continued."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.algorithm.advantages import returns_to_go
from digirl_dist.algorithm.digirl import DigiRL, paper_rule
from digirl_dist.algorithm.filtered_bc import FilteredBC
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.grpo_replay import GrpoReplay
from digirl_dist.algorithm.hindsight import Experience, Hindsight
from digirl_dist.algorithm.losses import imitation_loss
from digirl_dist.algorithm.optimizer import batches, fault_of
from digirl_dist.algorithm.options import ActorSettings, GrpoActorSettings
from digirl_dist.algorithm.selection import (
    best,
    completed_groups,
    fatal,
    loops,
    on_the_way,
    task_weights,
    unsolved,
    unsolved_steps,
)
from digirl_dist.algorithm.table import AVOIDED, KEPT, UNSOLVED, Row
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.emulator.touch_actions import SAID
from digirl_dist.errors import TrainingError
from digirl_dist.settings import (
    DigirlSettings,
    FilteredBcSettings,
    GenericAgentSettings,
    GrpoReplaySettings,
    GrpoSettings,
    OptimizerSettings,
)
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json
from tests.algorithm.test_digirl import measuring_nothing

Build = Callable[[GenericPolicy], Any]
RELEASED = DigirlSettings(advantage="code")
ALGORITHMS: dict[str, Build] = {
    "filtered_bc": lambda agent: FilteredBC(agent, FilteredBcSettings(), seed=3),
    "digirl": lambda agent: DigiRL(agent, DigirlSettings(), seed=3),
    "digirl as released": lambda agent: DigiRL(agent, RELEASED, seed=3, rule=RELEASED.rule(None)),
    "grpo": lambda agent: Grpo(agent, GrpoSettings(group_size=10), seed=3),
    "grpo_replay": lambda agent: GrpoReplay(agent, GrpoReplaySettings(group_size=10), seed=3),
}


@pytest.fixture(params=ALGORITHMS.values(), ids=ALGORITHMS)
def build(request: pytest.FixtureRequest) -> Build:
    found: Build = request.param
    return found


def policy() -> GenericPolicy:
    torch.manual_seed(0)
    return GenericAgentSettings().build(EmulatorSpec(DiscreteActions(3), vector_size=3))()


def episodes(iteration: int, count: int = 40) -> list[Trajectory]:
    """Episodes of up to three steps at which a random action is right when it names the largest entry."""
    rng = np.random.default_rng([5, iteration])
    return [_episode(Ticket(iteration, index, Task(f"t{index % 4}"), 7, iteration), rng) for index in range(count)]


def _episode(ticket: Ticket, rng: np.random.Generator) -> Trajectory:
    steps: list[Step] = []
    for place in range(3):
        vector, action = rng.normal(size=3).astype(np.float32), int(rng.integers(3))
        right = action == int(vector.argmax())
        steps.append(Step(Observation(vector=vector), action, -1.1, float(right), right, place == 2 and not right))
        if right:
            break
    final = Observation(vector=rng.normal(size=3).astype(np.float32))
    return Trajectory(ticket, f"e{ticket.index}", "here", 0, steps, final, steps[-1].terminated)


def weights(agent: GenericPolicy) -> list[np.ndarray]:
    return [weight.numpy().copy() for weight in agent.state_dict().values()]


def same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.component
@pytest.mark.parametrize(
    "name", ["filtered_bc", "digirl", pytest.param("digirl as released", marks=pytest.mark.nightly)]
)
def test_training_raises_the_probability_of_what_succeeded(name: str) -> None:
    """With episodes of another policy, from which GRPO must not move far away."""
    agent = policy()
    algorithm, data = ALGORITHMS[name](agent), episodes(0, 200)
    right = [
        (trajectory.steps[-1].observation, trajectory.steps[-1].action) for trajectory in data if trajectory.success
    ]
    before = agent.log_prob(*map(list, zip(*right, strict=True))).mean().item()
    for iteration in range(15):
        fresh = episodes(iteration, 200)
        figures, _ = algorithm.update(fresh, fresh)
    after = agent.log_prob(*map(list, zip(*right, strict=True))).mean().item()
    assert after > before + 0.3
    assert all(type(value) is float and math.isfinite(value) for value in figures.values())


@pytest.mark.component
def test_training_that_was_interrupted_goes_on_bit_by_bit(build: Build) -> None:
    uninterrupted, first = policy(), policy()
    whole, half = build(uninterrupted), build(first)
    for iteration in range(2):
        whole.update(episodes(iteration), episodes(iteration))
        half.update(episodes(iteration), episodes(iteration))
    torch.manual_seed(77)
    second = GenericAgentSettings().build(EmulatorSpec(DiscreteActions(3), vector_size=3))()
    resumed = build(second)
    assert not same(weights(second), weights(first))
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    resumed.load_state_dict(saved_and_loaded(half.state_dict()))
    for iteration in range(2, 4):
        whole.update(episodes(iteration), episodes(iteration))
        resumed.update(episodes(iteration), episodes(iteration))
    assert same(weights(second), weights(uninterrupted))


def test_training_twice_from_one_seed_gives_the_same_weights(build: Build) -> None:
    agents = policy(), policy()
    for agent in agents:
        build(agent).update(episodes(0), episodes(0))
    assert same(weights(agents[0]), weights(agents[1]))


def test_training_leaves_the_global_random_state_alone(build: Build) -> None:
    agent = policy()
    before = torch.get_rng_state()
    build(agent).update(episodes(0), episodes(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_filtered_bc_without_a_success_leaves_the_policy_as_it_is() -> None:
    agent, build = policy(), ALGORITHMS["filtered_bc"]
    failures = [trajectory for trajectory in episodes(0, 100) if not trajectory.success]
    before = weights(agent)
    figures, _ = build(agent).update(failures, failures)
    assert failures and same(weights(agent), before)
    assert figures["kept_trajectories"] == 0.0


@pytest.mark.parametrize("drops, kept", [(True, 1), (False, 2)])
def test_filtered_bc_imitates_a_step_that_changed_nothing_only_if_one_asks_for_it(drops: bool, kept: int) -> None:
    """The first of two needed actions leaves no trace."""
    seen = Observation("", None, np.zeros(3, np.float32))
    steps = [Step(seen, at, -1.0, float(at), at == 1, False) for at in range(2)]
    won = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen, True)
    algorithm = FilteredBC(policy(), FilteredBcSettings(), seed=3, experience=Experience(erase_loops=drops))
    figures, _ = algorithm.update([won], [won])
    assert (figures["kept_steps"], figures["left_in_loops"], figures["left_not_good"]) == (kept, 2 - kept, 0)


def test_a_prompt_that_tells_of_the_action_before_is_no_change_of_the_screen() -> None:
    seen = [Observation(f"Previous Actions: {at}", image) for at, image in enumerate([b"one", b"one", b"two"])]
    steps = [Step(seen[at], 0, 0.0, 0.0, at == 1, False) for at in range(2)]
    trajectory = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen[2], False)
    assert on_the_way(trajectory) == [False, True]


def test_an_empty_replay_changes_nothing(build: Build) -> None:
    agent = policy()
    before = weights(agent)
    build(agent).update([], [])
    assert same(weights(agent), before)


def test_a_loss_that_is_no_number_stops_the_run(build: Build) -> None:
    agent = policy()
    with torch.no_grad():
        next(agent.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="nan"):
        build(agent).update(episodes(0), episodes(0))


def test_the_imitation_loss_is_the_weighted_mean_of_negative_log_likelihoods() -> None:
    rng = np.random.default_rng(0)
    log_probs, weight = -rng.random(9), rng.random(9)
    found = float(imitation_loss(torch.tensor(log_probs), torch.tensor(weight)))
    assert found == pytest.approx(-np.average(log_probs, weights=weight), abs=1e-6)


def test_an_action_to_avoid_costs_what_its_likelihood_leaves_and_shares_in_the_weights() -> None:
    log_probs, weight = np.log([0.5, 0.75, 0.2]), np.array([1.0, -2.0, 1.0])
    found = float(imitation_loss(torch.tensor(log_probs), torch.tensor(weight)))
    assert found == pytest.approx(-(np.log(0.5) + 2 * np.log(0.25) + np.log(0.2)) / 4, abs=1e-6)


@pytest.mark.parametrize("certainty", [0.9, 0.99995, 0.999999, 1.0])
def test_an_action_to_avoid_is_unlearned_however_sure_the_policy_is_of_it(certainty: float) -> None:
    log_prob = torch.tensor([math.log(certainty)], dtype=torch.float64, requires_grad=True)
    loss = imitation_loss(log_prob, torch.tensor([-1.0]))
    loss.backward()
    assert torch.isfinite(loss) and log_prob.grad is not None
    assert log_prob.grad.item() == pytest.approx(1 / max(1 / certainty - 1, 1e-6), rel=1e-3)


def _ended_by(episode: Trajectory, action: Json, reward: float) -> Trajectory:
    return replace(episode, steps=[*episode.steps[:-1], replace(episode.steps[-1], action=action, reward=reward)])


def test_what_ended_a_failure_is_avoided_but_not_what_a_limit_cut_off() -> None:
    ended = [episode for episode in episodes(0) if episode.success]
    failed = [_ended_by(one, place, 0.0) for place, one in enumerate(ended[:5])]
    cut_off = [episode for episode in episodes(0) if not episode.success]
    for most, count, weight in ((9, 5, 0.5), (5, 5, 0.5), (3, 5, 0.3), (1, 4, 0.125)):
        kept = [_ended_by(ended[0], f"another {place}", 1.0) for place in range(most)]
        found = fatal([*failed, *ended, *cut_off], kept, 0.5)
        newest_first = [one.steps[-1].observation for one in failed[::-1]]
        assert [row.observation for row in found] == newest_first[:count]
        assert [row.weight for row in found] == pytest.approx([-weight] * count)
    assert fatal(failed, ended, 0.0) == []


@pytest.mark.parametrize(("others", "avoided"), [(0, ["leave"]), (1, ["leave"]), (2, ["leave", "submit"])])
def test_what_nearly_all_successes_end_with_is_not_avoided(others: int, avoided: list[str]) -> None:
    one = next(episode for episode in episodes(0) if episode.success)
    ends = ["other"] * others + ["submit"] * (19 - others)
    kept = [_ended_by(one, {"type": end, SAID: f"Done, {place}"}, 1.0) for place, end in enumerate(ends)]
    failed = [_ended_by(one, {"type": action, SAID: "So I end"}, 0.0) for action in ("submit", "leave")]
    found = fatal(failed, kept, 0.5)
    assert [row.action for row in found] == [{"type": action, SAID: "So I end"} for action in avoided]
    assert all(row.outcome == AVOIDED and "made less likely" in row.reason for row in found)


@pytest.mark.parametrize(("action", "avoided"), [([0.2, 1.0], 0), ([1, [0.2]], 0), ([1, 2], 1)])
def test_what_has_a_density_is_not_avoided(action: Json, avoided: int) -> None:
    """A density may be above 1, and -log(1 - π) of it is none of any number."""
    one = next(episode for episode in episodes(0) if episode.success)
    kept, failed = [_ended_by(one, "another", 1.0)], [_ended_by(one, action, 0.0)]
    again = replace(failed[0], steps=[failed[0].steps[-1]], final_observation=failed[0].steps[-1].observation)
    assert len(fatal(failed, kept, 0.5)) == len(loops([again], 9, 0.1, erase_loops=True)) == avoided


def test_what_led_a_failure_back_to_where_it_had_been_is_avoided_also_where_a_limit_cut_it_off() -> None:
    def walk(*places: int, reward: float = 0.0) -> Trajectory:
        seen = [Observation("", None, np.full(3, place, np.float32)) for place in places]
        steps = [Step(each, 0, -1.0, 0.0, False, False) for each in seen[:-1]]
        steps[-1] = replace(steps[-1], reward=reward, truncated=True)
        return Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen[-1], reward > 0)

    walks = [walk(0, 1, 2, 1, 3), walk(0, 1, 0, 2, reward=1.0), walk(0, 1, 2, 3)]
    found = loops(walks, 9, 0.1, erase_loops=True)
    assert [float(row.observation.vector[0]) for row in found if row.observation.vector is not None] == [1, 2]
    assert {row.weight for row in found} == {-0.1}
    assert len(loops(walks, 1, 0.1, erase_loops=True)) == 1, "no more than there is to imitate, else only these count"


def test_where_new_episodes_succeed_an_update_of_filtered_bc_is_a_sixth_as_long() -> None:
    won, lost = ([one for one in episodes(0) if one.success is wanted] for wanted in (True, False))

    def steps(fresh: list[Trajectory], tells_success: bool = True) -> int:
        shared = Experience(tells_success=tells_success)
        algorithm = FilteredBC(policy(), FilteredBcSettings(), seed=3, experience=shared)
        algorithm.update(fresh, won)
        return int(algorithm.state_dict()["imitation"]["optimizer"]["state"][0]["step"])

    whole = steps(lost[:1])
    assert steps(won) == math.ceil(whole / 6) and steps([*won[:9], lost[0]]) == steps([]) == whole
    assert steps(won, tells_success=False) == whole, "a return above 0 may be the least there is"


def test_few_episodes_to_imitate_make_a_small_update() -> None:
    """One success is no reason to give up all else that the policy would try; steps of unsolved tasks keep that."""
    won, unsolved = _tried("t", 0, 1.0), _tried("unsolved", 0, 0.0)
    settings = FilteredBcSettings(actor=ActorSettings(epochs=8, batch_size=1), avoid=0.0)

    def steps(count: int, *fresh: Trajectory) -> int:
        algorithm = FilteredBC(policy(), settings, seed=3)
        algorithm.update(fresh, [*[won] * count, *fresh])
        return int(algorithm.state_dict()["imitation"]["optimizer"]["state"][0]["step"])

    assert [steps(count) for count in (3, 12, 24, 30)] == [3, 48, 8 * 24, 8 * 30]
    assert steps(3, unsolved) == 8 * (3 + 1)


@pytest.mark.parametrize("avoid", [0.0, 1.0])
def test_filtered_bc_makes_what_ended_a_failure_less_likely(avoid: bool) -> None:
    agent = policy()
    seen = Observation("", None, np.ones(3, np.float32))
    one = {reward: Trajectory(Ticket(0, 0, Task("t"), 0, 0), f"e{reward}", "w", 0,
                              [Step(seen, int(reward), -1.0, reward, True, False)], Observation(), reward > 0)
           for reward in (0.0, 1.0)}  # fmt: skip
    before = agent.log_prob([seen] * 3, [0, 1, 2]).exp()
    FilteredBC(agent, FilteredBcSettings(avoid=avoid), seed=3).update([*one.values()], [*one.values()])
    after = agent.log_prob([seen] * 3, [0, 1, 2]).exp()
    lost = (before - after) / before
    assert after[1] > before[1]
    assert (lost[0] > lost[2] + 0.01) == bool(avoid), "beside the action that no episode tried"


def steps_of(rows: Sequence[Row]) -> list[Step]:
    return [row.episode.steps[row.place] for row in rows]


def _tried(task: str, policy_version: int, reward: float, action: int = 2, vector: float = 1.0) -> Trajectory:
    seen = Observation(vector=np.full(3, vector, np.float32))
    step = Step(seen, action, -1.1, reward, reward > 0, reward <= 0)
    ticket = Ticket(policy_version, 0, Task(task), 0, policy_version)
    return Trajectory(ticket, f"{task}{policy_version}{reward}", "w", 0, [step], seen, reward > 0)


def test_unsolved_are_the_oldest_policys_steps_in_tasks_in_which_no_episode_came_out_better() -> None:
    never, later, solved, graded = [[_tried(task, at, reward) for at, reward in enumerate(returns)]
                                    for task, returns in {"never": [0, 0], "later": [0, 1], "solved": [1, 1],
                                                          "graded": [-2, -1]}.items()]  # fmt: skip
    assert steps_of(unsolved([*never, *later, *solved, *graded], 1.0)) == never[0].steps
    assert unsolved([*never[1:], *later], 1.0) == [], "the oldest policy of that replay did not try the task"
    assert unsolved([], 1.0) == []


def test_offline_data_is_not_taken_for_what_this_runs_policies_did() -> None:
    """Its versions are another run's, and so are its tickets: an older one that solved nothing is held to nowhere."""
    offline = [_tried("never", 0, 0.0), _tried("else", 0, 0.0)]
    offline = [replace(one, ticket=replace(one.ticket, iteration=~at)) for at, one in enumerate(offline)]
    own = _tried("never", 3, 0.0)
    assert steps_of(unsolved([*offline, own], 1.0)) == own.steps
    assert len(completed_groups([own], [*offline, own], 1)) == 1 and not completed_groups([own], [*offline, own], 2)


def test_in_a_task_that_was_done_in_part_what_follows_the_last_reward_is_unsolved() -> None:
    def tried(*rewards: float, success: bool = False, version: int = 0) -> Trajectory:
        one = _tried("long", version, 0.0)
        steps = [replace(one.steps[0], reward=reward, log_prob=-float(at)) for at, reward in enumerate(rewards)]
        return replace(one, steps=steps, success=success)

    half, nothing, at_the_end = tried(0, 0.5, 0, 0), tried(0, 0), tried(0, 0.5)
    assert steps_of(unsolved([half, nothing, at_the_end], 1.0)) == half.steps[2:]
    assert unsolved([half, nothing, tried(0.5, 0.5, success=True, version=1)], 1.0) == []


@pytest.mark.parametrize("name", ["filtered_bc", "digirl", "grpo_replay"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_was_chosen_in_an_unsolved_task_stays_likelier_there(name: str, share: float) -> None:
    """Imitating the solved task, in which action 1 is right, makes action 2 unlikely in the other one as well."""
    solved = [_tried("solved", 0, 1.0, action=1), _tried("solved", 0, 0.0, action=2)]
    replay = [*solved * 24, *(_tried("unsolved", 0, 0.0, action=2) for _ in range(24))]
    agent, own = policy(), GrpoActorSettings(epochs=20, learning_rate=5e-3)
    shared = Experience(unsolved=share)
    settings = {
        "filtered_bc": lambda: FilteredBC(agent, FilteredBcSettings(avoid=0.0), seed=3, experience=shared),
        "digirl": lambda: DigiRL(agent, measuring_nothing(), 3, rule=paper_rule(0.5, 10), experience=shared),
        "grpo_replay": lambda: GrpoReplay(agent, GrpoReplaySettings(actor=own), seed=3, experience=shared),
    }
    algorithm = settings[name]()
    figures, table = algorithm.update(replay, replay)
    assert figures["unsolved_steps"] == (24 if share else 0)
    seen = replay[0].steps[0].observation
    other, held = agent.log_prob([seen] * 2, [0, 2]).exp().tolist()
    assert (held > other + 0.05) == bool(share)
    kept = [any(row.learned for row in table if row.episode is each) for each in replay]
    assert kept == [True, False] * 24 + [bool(share)] * 24


def test_the_open_end_of_an_episode_that_is_imitated_is_in_the_table() -> None:
    """Of four steps the first two earned half, the others are held to: that is what the update counted."""
    one = _tried("long", 0, 0.0)
    steps = [replace(one.steps[0], reward=reward, observation=Observation(vector=np.full(3, at, np.float32)))
             for at, reward in enumerate([0, 0.5, 0, 0])]  # fmt: skip
    replay = [replace(one, steps=steps)]
    algorithm = FilteredBC(policy(), FilteredBcSettings(avoid=0.0), seed=3)
    figures, table = algorithm.update(replay, replay)
    assert figures["kept_steps"] == figures["unsolved_steps"] == 2
    learned = [(row.place, row.outcome) for row in table if row.learned]
    assert learned == [(0, KEPT), (1, KEPT), (2, UNSOLVED), (3, UNSOLVED)]


def test_offline_nothing_is_held() -> None:
    replay = [_tried("solved", 0, 1.0, action=1), _tried("unsolved", 0, 0.0)]
    algorithm = FilteredBC(policy(), FilteredBcSettings(avoid=0.0), seed=3)
    figures, table = algorithm.update([], replay)
    assert figures["unsolved_steps"] == 0 and [row.learned for row in table] == [True, False]


@pytest.mark.parametrize("online", [True, False])
def test_of_each_task_the_newest_successes_are_imitated_and_those_of_one_step_and_offline_all(online: bool) -> None:
    """One of another task is relabelled: it counts with the task that was tried. Three went a longer way."""
    replay = [_tried(task, 0, float(task != "c")) for task in "aaabaabcb"]
    for place in (0, 1, 3):
        replay[place] = replace(replay[place], steps=[*_tried("on", 0, 0.0).steps, *replay[place].steps])
    tickets = [
        replace(one.ticket, index=number, task=Task(one.ticket.task.id, "c")) for number, one in enumerate(replay)
    ]
    replay = [
        replace(one, ticket=ticket, final_observation=Observation("another"))
        for one, ticket in zip(replay, tickets, strict=True)
    ]
    hindsight = Hindsight([Task("b", "b")], 1, lambda one: [(1, "b")] if one.ticket.task.id == "c" else [])
    shared = Experience(hindsight, erase_loops=False)
    algorithm = FilteredBC(policy(), FilteredBcSettings(newest=2), seed=3, experience=shared)
    figures, table = algorithm.update(replay[-1:] if online else [], replay)
    kept = sorted({row.episode.ticket.index for row in table if row.learned and row.outcome == KEPT})
    assert kept == ([2, 4, 5, 6, 7, 8] if online else [*range(9)]) and figures["kept_trajectories"] == len(kept)


def test_nothing_is_held_while_there_is_nothing_to_imitate() -> None:
    assert unsolved_steps([_tried("unsolved", 0, 0.0)], 0.5, []) == []


def test_returns_to_go_are_discounted_sums() -> None:
    rewards = [0.5, 0.0, 2.0, 1.0]
    expected = [sum(0.7**k * reward for k, reward in enumerate(rewards[h:])) for h in range(4)]
    np.testing.assert_allclose(returns_to_go(rewards, 0.7), expected, atol=1e-6)


def test_the_top_decile_is_kept_with_ties() -> None:
    assert best(np.arange(40.0), 0.1, above=0.0) == [36, 37, 38, 39]
    assert best(np.array([0.0, 1.0, 0.0, 1.0, 1.0]), 0.1, above=0.0) == [1, 3, 4]
    tenth, fifth, three = (float(np.float32(reward)) for reward in (0.1, 0.2, 0.3))
    assert best(np.array([tenth + fifth, three, 0.0]), 0.1, above=0.0) == [0, 1]


def test_nothing_that_earned_nothing_is_kept() -> None:
    assert best(np.zeros(20), 0.1, above=0.0) == []
    assert best(np.array([0.0] * 19 + [1.0]), 0.5, above=0.0) == [19]
    assert best(np.array([]), 0.1, above=0.0) == []


def test_a_task_solved_four_times_as_often_weighs_twice_as_much_in_all() -> None:
    found = task_weights(["often"] * 4 + ["seldom"])
    assert found == [0.5, 0.5, 0.5, 0.5, 1.0]


def test_batches_go_through_all_rows_before_any_comes_again() -> None:
    found = batches(10, OptimizerSettings(batch_size=4, epochs=3, max_examples=25), torch.Generator().manual_seed(0))
    order = [index for batch in found for index in batch]
    assert [len(batch) for batch in found] == [4, 4, 4, 4, 3, 3, 3]  # none of a single row, which moves Adam as far
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20]


@pytest.mark.parametrize(("limit", "others"), [(3, 0), (12, 5), (40, 16)])
def test_a_limit_of_examples_never_leaves_out_what_is_fresh(limit: int, others: int) -> None:
    settings = OptimizerSettings(batch_size=4, epochs=2, max_examples=limit)
    found = [index for batch in batches(15, settings, torch.Generator().manual_seed(0), fresh=7) for index in batch]
    assert len([index for index in found if index >= 7]) == others and set(range(7)) <= set(found)


def test_numbers_that_are_none_are_named() -> None:
    assert fault_of(1.5, 1e9, 2.0, "x") == ""
    assert fault_of(math.inf, 1.0, 2.0, "the loss").startswith("the loss became inf; ")
    assert fault_of(2e5, 1.0, 1e4, "the loss").startswith("the loss became 2e+05, beyond 1e+04; ")
