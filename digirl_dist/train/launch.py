"""Starts one rank: checks how it was launched, builds its parts, takes up what the run folder holds, and trains."""

from __future__ import annotations

import io
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from digirl_dist.agent import Agent
from digirl_dist.agent.placement import Placed
from digirl_dist.algorithm import Algorithm
from digirl_dist.build import validate
from digirl_dist.build.choices import Device, choose_agent, choose_algorithm, choose_device
from digirl_dist.errors import CheckpointError, SettingsError
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.peers import OwnRows
from digirl_dist.parallel.rank import Rank
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.settings import Settings, TrainAlgorithm, TrainMode, configuration
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.train.loop import DataSelector, Episodes, Groups, NullReporter, Pieces, RankLoop, Reporter
from digirl_dist.train.parquet_bytes import from_parquet_bytes, to_parquet_bytes
from digirl_dist.train.rendezvous import Rendezvous, join_ranks
from digirl_dist.train.streams import Stream, Streams
from digirl_dist.trajectory import Trajectory

_EVALUATION_SLOT = 10**6
"""Its episodes have seeds that no emulator in training has."""


@dataclass(frozen=True)
class RankContext:
    """What every part of this rank is built from."""

    settings: Settings
    emulator: Device
    rank: Rank

    @property
    def bsize(self) -> int:
        """Emulators of this rank. Raises SettingsError for auto: ranks are counted on to have equally many."""
        if not isinstance(self.settings.bsize, int):
            raise SettingsError("ranks with emulators need a number for bsize, the same for all")
        return self.settings.bsize


@dataclass(frozen=True)
class Learner:
    """The policy of this rank, and how it is updated."""

    agent: Agent
    algorithm: Algorithm


@dataclass(frozen=True)
class Beginning:
    """Where a run stands, as rank 0 read it in the run folder and told the others."""

    iteration: int
    policy: dict[str, torch.Tensor]
    trainer: dict[str, Any]
    replay: list[Trajectory]


def refuse_contradictions(settings: Settings) -> None:
    """Raises SettingsError for what only a host can do."""
    if settings.train_mode is not TrainMode.online:
        raise SettingsError(f"ranks with emulators learn online alone; use run.py for {settings.train_mode.value}")
    if settings.trainer.shard:
        raise SettingsError("ranks with emulators act with a whole agent each; use run.py for trainer.shard")
    if settings.evaluation.every:
        raise SettingsError("ranks with emulators evaluate by distributed.eval_freq; leave evaluation.every out")


def train(settings: Settings, distributed: bool) -> None:
    """Train as one rank of a launch, or alone."""
    refuse_contradictions(settings)
    with ExitStack() as stack:
        meeting = stack.enter_context(join_ranks(settings, distributed))
        group, rank = meeting.group, meeting.group.rank
        context = RankContext(settings, choose_device(settings, settings.emulator), rank)
        learner = _learner(context, meeting)
        streams = Streams([stream_of(context, slot) for slot in range(context.bsize)], context.emulator.max_steps)
        stack.callback(streams.close)
        folder = _open_folder(settings, stack) if rank.is_first else None
        beginning = _beginning(folder, settings, group)
        window = EpisodeWindow()
        _take_up(beginning, rank, learner, streams, window)
        _tell_ranks(folder, group, settings.seed, meeting.device)
        reporter: Reporter = NullReporter()
        if folder is not None:
            reporter = _first_rank(context, folder, learner, beginning, stack)
        selector = _data_selector(settings, beginning, rank)
        steps, seed = settings.distributed.steps, settings.seed + rank.rank
        loop = RankLoop(group, learner.agent, learner.algorithm, streams, selector, window, reporter, steps, seed)
        loop.train(beginning.iteration, settings.train_iterations)


def _learner(context: RankContext, meeting: Rendezvous) -> Learner:
    """The same first weights on every rank, since they follow from the seed."""
    settings = context.settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        agent = Placed(choose_agent(settings.agent, context.emulator.spec), meeting.acts_on)()
        agent.train(False)
        algorithm = choose_algorithm(settings, context.emulator.max_steps)
        return Learner(agent, algorithm(agent, OwnRows(meeting.group)))


def stream_of(context: RankContext, slot: int) -> Stream:
    """Ranks differ by their seed: that of the configuration plus the rank."""
    rank, emulator, settings = context.rank.rank, context.emulator, context.settings
    seed, group_size = settings.seed + rank, validate.group_size(settings)
    return Stream(emulator.factory(), emulator.tasks, f"rank{rank}", slot, seed, group_size)


def _data_selector(settings: Settings, beginning: Beginning, rank: Rank) -> DataSelector:
    if settings.train_algorithm is TrainAlgorithm.ppo:
        return Pieces()
    own = [each for each in beginning.replay if each.ticket.index % rank.world_size == rank.rank]
    if settings.train_algorithm is TrainAlgorithm.grpo:
        return Groups(own, validate.group_size(settings))
    return Episodes(own, settings.trainer.replay_size)


def _open_folder(settings: Settings, stack: ExitStack) -> RunFolder:
    folder = RunFolder(Path(settings.save_path).expanduser().resolve(), configuration.to_yaml(settings))
    stack.callback(folder.close)
    return folder


def _checkpoints(folder: RunFolder, settings: Settings) -> Checkpoints:
    return Checkpoints(folder.checkpoints, settings.save_freq, settings.keep_checkpoints)


def _beginning(folder: RunFolder | None, settings: Settings, group: Group) -> Beginning:
    """Rank 0 reads, so that the others need not see the folder."""
    if folder is None:
        words, replay = group.from_first(b""), group.from_first(b"")
    else:
        words, replay = (group.from_first(part) for part in _read(folder, settings, group.rank.world_size))
    state = torch.load(io.BytesIO(words), map_location="cpu", weights_only=True)
    return Beginning(state["iteration"], state["policy"], state["trainer"], from_parquet_bytes(replay))


def _read(folder: RunFolder, settings: Settings, world_size: int) -> tuple[bytes, bytes]:
    """The newest checkpoint and the replay, as bytes; of a new run, iteration 0 and nothing."""
    newest = _checkpoints(folder, settings).newest()
    words = io.BytesIO()
    if newest is None:
        torch.save({"iteration": 0, "policy": {}, "trainer": {}}, words)
        return words.getvalue(), b""
    state = {"iteration": newest.iteration, "policy": newest.state(), "trainer": newest.trainer_state()}
    torch.save(state, words)
    capacity = settings.trainer.replay_size * world_size
    return words.getvalue(), to_parquet_bytes(Store(folder.trajectories).replay(newest.iteration - 1, capacity))


def _take_up(beginning: Beginning, rank: Rank, learner: Learner, streams: Streams, window: EpisodeWindow) -> None:
    """Go on where the run stood. A rank that the run did not have begins anew."""
    if not beginning.iteration:
        return
    try:
        learner.agent.load_state_dict(beginning.policy)
        learner.algorithm.load_state_dict(beginning.trainer["algorithm"])
        states = beginning.trainer["ranks"]["states"]
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"the newest checkpoint does not fit what is configured; use another save_path ({str(error)[:200]})"
        ) from error
    if rank.rank < len(states):
        streams.load_state(states[rank.rank]["streams"])
        window.load_state(states[rank.rank]["window"])


def _tell_ranks(folder: RunFolder | None, group: Group, seed: int, device: str) -> None:
    """One event that says who takes part: rank, effective seed, device, process."""
    own = {"rank": group.rank.rank, "seed": seed + group.rank.rank, "device": device, "pid": os.getpid()}
    ranks = [json.loads(part) for part in group.to_first(json.dumps(own).encode())]
    if folder is not None:
        events = Events(folder.events)
        events.emit("ranks", world_size=group.rank.world_size, ranks=ranks)
        events.close()


def _first_rank(
    context: RankContext, folder: RunFolder, learner: Learner, beginning: Beginning, stack: ExitStack
) -> Reporter:
    from digirl_dist.build.run import build_curves
    from digirl_dist.report.metrics import Metrics
    from digirl_dist.train.reporter import Measure, RankZeroReporter  # TensorBoard is slow to import

    settings, own = context.settings, context.settings.distributed
    metrics = Metrics(folder.metrics)
    metrics.keep_until(beginning.iteration)
    curves = build_curves(settings, folder)
    for drawn in curves:
        stack.callback(drawn.close)
    stream = partial(stream_of, context, _EVALUATION_SLOT)
    measure = Measure(stream, context.emulator.max_steps, own.eval_freq, own.eval_episodes)
    return RankZeroReporter(
        learner.agent,
        learner.algorithm,
        _checkpoints(folder, settings),
        Store(folder.trajectories),
        metrics,
        curves,
        measure,
        partial(print, flush=True),
        steps=own.steps * context.bsize * context.rank.world_size,
        global_step=beginning.trainer["ranks"]["global_step"] if beginning.iteration else 0,
    )
