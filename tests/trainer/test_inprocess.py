"""The trainer survives: three iterations and three more are six, and what goes wrong costs one update."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from digirl_dist.agent.device.policy import DevicePolicy
from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.algorithm.digirl import DigiRL
from digirl_dist.algorithm.filtered_bc import FilteredBC
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.grpo_replay import GrpoReplay
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator import DeviceActions, DiscreteActions, EmulatorSpec
from digirl_dist.errors import CheckpointError, TrainingError, TrajectoryError
from digirl_dist.parallel.peers import Peers
from digirl_dist.settings import (
    DeviceAgentSettings,
    DigirlSettings,
    FilteredBcSettings,
    GenericAgentSettings,
    GrpoReplaySettings,
    GrpoSettings,
)
from digirl_dist.settings.plugins import values
from digirl_dist.storage import provenance
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trainer.inprocess import AlgorithmFactory, InProcessTrainer
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = pytest.mark.component

RELEASED = DigirlSettings(advantage="code", warmup_iterations=2)
PICTURE = (64, 48)
ALGORITHMS: dict[str, AlgorithmFactory] = {
    "filtered_bc": lambda agent, peers: FilteredBC(agent, FilteredBcSettings(), 1, peers),
    "paper": lambda agent, peers: DigiRL(agent, DigirlSettings(), 1, peers),
    "code": lambda agent, peers: DigiRL(agent, RELEASED, 1, peers, RELEASED.rule(None)),
    "grpo": lambda agent, peers: Grpo(agent, GrpoSettings(group_size=4), 1, peers),
    "grpo_replay": lambda agent, peers: GrpoReplay(agent, GrpoReplaySettings(), 1, peers),
}


class Forgetful(GenericPolicy):
    """Draws from the global generator while it learns, as a network with dropout does."""

    def __init__(self) -> None:
        spec = EmulatorSpec(DiscreteActions(3), vector_size=3)
        super().__init__(spec, **values(GenericAgentSettings(width=8)))

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        noise = 0.1 * torch.rand(len(actions)) if torch.is_grad_enabled() else 0.0
        return super().log_prob(observations, actions) * (1 + noise)


def policy_of_shifted_pictures() -> DevicePolicy:
    return DeviceAgentSettings(shift=8).build(EmulatorSpec(DeviceActions(), 0, PICTURE))()


def taps(iteration: int) -> list[Trajectory]:
    """One tap each on a picture of noise."""
    rng = np.random.default_rng([6, iteration])
    return [_tap(Ticket(iteration, index, Task("t"), 9 * iteration + index // 4, iteration), rng) for index in range(8)]


def _tap(ticket: Ticket, rng: np.random.Generator) -> Trajectory:
    file, won = io.BytesIO(), ticket.index % 2 == 0
    Image.fromarray(rng.integers(0, 255, (*PICTURE, 3), dtype=np.uint8)).save(file, "png")
    seen = Observation("tap", file.getvalue())
    step = Step(seen, {"type": "tap", "x": rng.random(), "y": rng.random()}, -3.0, float(won), True, False)
    return Trajectory(ticket, f"e{ticket.index}", "here", 0, [step], seen, won)


def episodes(iteration: int) -> list[Trajectory]:
    rng = np.random.default_rng([5, iteration])
    return [
        _episode(Ticket(iteration, index, Task("t"), 9 * iteration + index // 4, iteration), rng) for index in range(24)
    ]


def _episode(ticket: Ticket, rng: np.random.Generator) -> Trajectory:
    seen = [Observation(vector=rng.normal(size=3).astype(np.float32)) for _ in range(3)]
    won = rng.random() < 0.5
    steps = [Step(seen[at], int(rng.integers(3)), -1.1, float(won and at), bool(at), False) for at in range(2)]
    return Trajectory(ticket, f"e{ticket.iteration}-{ticket.index}", "here", 0, steps, seen[2], won)


def trainer(folder: Path, algorithm: AlgorithmFactory, offline: Sequence[Trajectory] = ()) -> InProcessTrainer:
    return InProcessTrainer(Forgetful, algorithm, Checkpoints(folder / "checkpoints"), 60, 4, offline=offline)


def run(folder: Path, algorithm: AlgorithmFactory, until: int, offline: Sequence[Trajectory] = ()) -> None:
    """As ``host.train`` does, in a process that is new."""
    learn_until(until, trainer(folder, algorithm, offline), Store(folder / "trajectories"), episodes)


def learn_until(
    until: int, learner: InProcessTrainer, store: Store, collect: Callable[[int], list[Trajectory]]
) -> None:
    checkpoint = learner.resume()
    while checkpoint.iteration < until:
        store.append(CollectionResult(checkpoint.iteration, collect(checkpoint.iteration)))
        checkpoint = learner.update(checkpoint, store).checkpoint


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for key in sorted(state, key=str) for leaf in flat(state[key])]
    if isinstance(state, list | tuple):
        return [leaf for entry in state for leaf in flat(entry)]
    return [state.numpy().tobytes()] if isinstance(state, torch.Tensor) else [state]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_iterations_and_three_more_are_six_bit_by_bit(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    run(tmp_path / "whole", ALGORITHMS[name], 6)
    run(tmp_path / "halves", ALGORITHMS[name], 3)
    torch.manual_seed(2)  # another process has another global state
    run(tmp_path / "halves", ALGORITHMS[name], 6)
    whole, halves = (Checkpoints(tmp_path / part / "checkpoints").open(6) for part in ("whole", "halves"))
    assert whole.tensors == halves.tensors
    assert flat(whole.trainer_state()) == flat(halves.trainer_state())
    assert whole.metrics() == halves.metrics()
    assert whole.tensors != Checkpoints(tmp_path / "whole" / "checkpoints").open(3).tensors


@pytest.mark.parametrize("name", ["filtered_bc", "grpo_replay"])
def test_one_and_one_are_two_also_with_shifted_pictures(name: str, tmp_path: Path) -> None:
    for folder, stops in (("whole", [2]), ("halves", [1, 2])):
        for stop in stops:
            torch.manual_seed(stop)
            checkpoints = Checkpoints(tmp_path / folder / "checkpoints")
            learner = InProcessTrainer(policy_of_shifted_pictures, ALGORITHMS[name], checkpoints, 16, 4)
            learn_until(stop, learner, Store(tmp_path / folder / "trajectories"), taps)
    whole, halves = (Checkpoints(tmp_path / part / "checkpoints").open(2) for part in ("whole", "halves"))
    assert whole.tensors == halves.tensors != Checkpoints(tmp_path / "whole" / "checkpoints").open(1).tensors
    assert flat(whole.trainer_state()) == flat(halves.trainer_state())


def test_an_update_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(tmp_path, ALGORITHMS["filtered_bc"], 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_update_on_the_cpu_leaves_devices_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that is too old counts its devices nevertheless; all else fails, as without CUDA."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    run(tmp_path, ALGORITHMS["filtered_bc"], 1)
    provenance.record_start(tmp_path, provenance.changes_of(tmp_path, {}))


class Breaks:
    """An algorithm whose second update spoils a weight without noticing."""

    def __init__(self, agent: nn.Module, peers: Peers) -> None:
        self._agent = agent
        self._updates = 0

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        self._updates += 1
        if self._updates == 2:
            with torch.no_grad():
                next(self._agent.parameters()).view(-1)[0] = float("nan")
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def load_state_dict(self, state: Any) -> None:
        self._updates = state["updates"]


def test_a_weight_that_is_no_number_stops_the_run_and_the_last_good_checkpoint_stays(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"the weight .* is not finite; .* resumes from .*000001"):
        run(tmp_path, Breaks, 3)  # type: ignore[arg-type]
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None and newest.iteration == 1
    assert all(torch.isfinite(tensor).all() for tensor in newest.state().values())


def test_an_exploding_loss_keeps_the_last_good_checkpoint_and_a_lower_limit_lets_it_go_on(tmp_path: Path) -> None:
    def bounded(most: float) -> AlgorithmFactory:
        settings = FilteredBcSettings()
        settings.actor.MAX_LOSS = most  # type: ignore[misc]
        return lambda agent, peers: FilteredBC(agent, settings, 1, peers)

    run(tmp_path, bounded(100.0), 1)
    with pytest.raises(TrainingError, match="the actor's loss became .* beyond 0.001"):
        run(tmp_path, bounded(1e-3), 3)
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None and newest.iteration == 1
    assert not Store(tmp_path / "trajectories").refused.all(), "without what succeeded, nothing is left to fail"
    run(tmp_path, bounded(100.0), 3)


def test_episodes_that_got_lost_between_two_updates_are_missed(tmp_path: Path) -> None:
    run(tmp_path, ALGORITHMS["filtered_bc"], 2)
    (tmp_path / "trajectories" / "000000.parquet").unlink()
    with pytest.raises(TrajectoryError, match="has 48 of the 60 newest episodes"):
        run(tmp_path, ALGORITHMS["filtered_bc"], 3)


def test_older_episodes_do_not_take_the_place_of_lost_ones(tmp_path: Path) -> None:
    run(tmp_path, ALGORITHMS["filtered_bc"], 4)
    (tmp_path / "trajectories" / "000002.parquet").unlink()
    with pytest.raises(TrajectoryError, match="has 48 of the 60 newest episodes"):
        run(tmp_path, ALGORITHMS["filtered_bc"], 5)


def test_a_run_that_has_collected_may_learn_offline_and_collect_again(tmp_path: Path) -> None:
    """Offline iterations have no file."""
    run(tmp_path, ALGORITHMS["filtered_bc"], 2)
    store, factory = Store(tmp_path / "trajectories"), ALGORITHMS["filtered_bc"]
    learn_until(4, trainer(tmp_path, factory, episodes(9)), store, lambda iteration: [])
    assert {one.ticket.iteration for one in store.replay(3, 60)} == {0, 1}
    run(tmp_path, factory, 5, episodes(9))
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None and newest.trainer_state()["replayed"] == {0: 12, 1: 24, 4: 24}


@pytest.mark.parametrize("returned", [None, 0.3, {"loss": "low"}, {"loss": None}])
def test_figures_that_are_none_are_refused_by_the_algorithms_name(tmp_path: Path, returned: Any) -> None:
    updates: list[int] = []

    class Returns(Breaks):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Any:
            updates.append(len(fresh))
            return returned

    with pytest.raises(TrainingError, match="Returns.update returned .*, not a dict of numbers by name. A run with"):
        run(tmp_path, partial(Returns), 1)  # type: ignore[arg-type]
    assert updates == [24]  # no episode is suspected


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"baseline": np.float64(0.5)}, r"a numpy.float64 at \['baseline'\]"),
        ({"returns": [np.zeros(2)]}, r"a numpy.ndarray at \['returns'\]\[0\]"),
        ({"counts": {np.int64(3): 1}}, r"a numpy.int64 at "),
        ({"mean": torch.ones(1).expand(5)}, r"a tensor that is expanded, .* at \['mean'\]"),
        ({"mean": [torch.eye(3).to_sparse()]}, r"a tensor that is .*sparse, .* at \['mean'\]\[0\]"),
        ({"seen": {1: {"a", frozenset("b")}}}, r"a builtins.frozenset at \['seen'\]\[1\]\["),
        (None, "a builtins.NoneType"),
    ],
)
def test_a_state_that_no_resume_could_read_is_refused_before_a_checkpoint_has_it(
    tmp_path: Path, state: Any, told: str
) -> None:
    asked: list[Any] = []

    class Keeps(Breaks):
        def state_dict(self) -> Any:
            asked.append(state if self._updates else {"updates": 0})
            return asked[-1]

    with pytest.raises(CheckpointError, match=rf"^Keeps.state_dict returned {told}.*which no resume could read"):
        run(tmp_path, partial(Keeps), 1)  # type: ignore[arg-type]
    assert Checkpoints(tmp_path / "checkpoints").iterations() == [0]
    assert asked == [{"updates": 0}, state]  # no episode is suspected


def test_a_device_that_failed_is_told_as_such(tmp_path: Path) -> None:
    updates: list[int] = []

    class Asserts(Breaks):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
            updates.append(len(fresh))
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with pytest.raises(TrainingError, match="device-side assert triggered .*. A run with this save_path resumes"):
        run(tmp_path, partial(Asserts), 1)  # type: ignore[arg-type]
    assert updates == [24]


def test_offline_episodes_come_before_the_collected_ones_and_are_all_seen(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Sees(Breaks):
        def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
            seen.append((len(fresh), len(replay)))
            assert [each.is_offline for each in replay] == [True] * 24 + [False] * (len(replay) - 24)
            assert len({each.ticket.key for each in replay}) == len(replay)
            return {}

    run(tmp_path, partial(Sees), 4, offline=episodes(9))  # type: ignore[arg-type]
    assert seen == [(24, 48), (24, 72), (24, 84), (24, 84)]
