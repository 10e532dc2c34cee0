"""Resumes a run on ranks: rank 0 reads the run folder, and every rank receives what it needs to continue."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from digirl_dist.algorithm.plugins import LearnsFrom
from digirl_dist.assembly.parts import algorithm_plugin
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.rank import Rank
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.settings import Settings
from digirl_dist.storage.checkpoint import Checkpoints, loading
from digirl_dist.storage.of_ranks import newest_of_each_rank, of_rank
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.train.learner import RankLearner
from digirl_dist.train.parquet_bytes import from_parquet_bytes, to_parquet_bytes
from digirl_dist.train.random_states import with_random_states
from digirl_dist.train.streams import Streams
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json
from digirl_dist.user_code.state import load_state


@dataclass(frozen=True)
class ResumedState:
    """The newest checkpoint of a run and its replay, on every rank. A new run has iteration 0 and nothing else."""

    iteration: int
    policy: Mapping[str, torch.Tensor]
    trainer: Mapping[str, Any]
    replay: list[Trajectory]
    """Of this rank alone, oldest first."""

    @property
    def global_step(self) -> int:
        """How many steps all emulators of all ranks have made."""
        return int(self.trainer["ranks"]["global_step"]) if self.iteration else 0

    @property
    def states(self) -> Sequence[Json]:
        """What each rank of the run needs to continue, in the order of ranks."""
        return self.trainer["ranks"]["states"] if self.iteration else ()

    def restore(self, rank: Rank, learner: RankLearner, streams: Streams, window: EpisodeWindow) -> None:
        """Brings the parts of this rank to where they were. A rank that the run did not have keeps new emulators.

        Raises CheckpointError for weights or states that do not fit.
        """
        if not self.iteration:
            return
        with loading("the newest checkpoint"):
            own = self.states[rank.rank] if rank.rank < len(self.states) else {}
            load_state(learner.agent, self.policy)
            load_state(learner.algorithm, with_random_states(self.trainer["algorithm"], own.get("random", {})))
        if own:
            streams.load_state(own["streams"])
            window.load_state(own["window"])


def checkpoints_of(folder: RunFolder, settings: Settings, policy: Mapping[str, Json] | None = None) -> Checkpoints:
    """Returns the run's checkpoints, of which as many are kept as the settings say; ``policy`` describes new ones."""
    return Checkpoints(folder.checkpoints, settings.save_freq, settings.keep_checkpoints, policy=policy)


def resumed_state(folder: RunFolder | None, settings: Settings, group: Group) -> ResumedState:
    """Returns the state of the run in ``folder``, which only rank 0 has: the other nodes need not see it."""
    checkpoint, replay = (b"", b"") if folder is None else _read(folder, settings, group.rank.world_size)
    state = torch.load(io.BytesIO(group.broadcast(checkpoint)), map_location="cpu", weights_only=True)
    episodes = from_parquet_bytes(group.broadcast(replay))
    return ResumedState(state["iteration"], state["policy"], state["trainer"], of_rank(episodes, group.rank))


def _read(folder: RunFolder, settings: Settings, world_size: int) -> tuple[bytes, bytes]:
    """Returns the newest checkpoint and the replay of all ranks."""
    newest, state = checkpoints_of(folder, settings).newest(), io.BytesIO()
    if newest is None:
        torch.save({"iteration": 0, "policy": {}, "trainer": {}}, state)
        return state.getvalue(), b""
    torch.save({"iteration": newest.iteration, "policy": newest.state(), "trainer": newest.trainer_state()}, state)
    uses_replay = algorithm_plugin(settings).learns_from is not LearnsFrom.steps
    capacity = settings.trainer.replay_size if uses_replay else 0
    replay = newest_of_each_rank(Store(folder.trajectories), newest.iteration, capacity, world_size)
    return state.getvalue(), to_parquet_bytes(replay)
