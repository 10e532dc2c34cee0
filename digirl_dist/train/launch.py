"""Starts one rank: checks how it was launched, builds its parts, resumes what the run folder holds, and trains."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from digirl_dist.agent.placement import Placed
from digirl_dist.algorithm.plugins import LearnsFrom
from digirl_dist.assembly import schedule, validate
from digirl_dist.assembly.agreement import agree
from digirl_dist.assembly.parts import (
    agent_plugin,
    algorithm_plugin,
    build_algorithm,
    device_of,
    record_start,
    run_root,
    starting,
    tells_success,
)
from digirl_dist.assembly.policy import describe_policy
from digirl_dist.emulator.plugins import Device
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.failure import say
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.peers import OwnRows
from digirl_dist.parallel.rank import Rank, is_of_jax, launched_rank
from digirl_dist.settings import Settings, configuration, conversion
from digirl_dist.storage import provenance
from digirl_dist.storage.checkpoint import Checkpoints, loading
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store, newest_of_each_rank, of_rank
from digirl_dist.train.loop import (
    EpisodeReplay,
    EpisodeWindow,
    IterationReport,
    RankLearner,
    RankLoop,
    from_parquet_bytes,
    to_parquet_bytes,
)
from digirl_dist.train.streams import Stream, Streams
from digirl_dist.train.watched_emulator import Watch, WatchedEmulator
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json
from digirl_dist.user_code.entry_point import load_state

_EVALUATION_SLOT = 10**6
"""The slot of the emulator that evaluates, which no emulator in training has."""


@dataclass(frozen=True)
class RankContext:
    """What the parts of one rank are built from."""

    settings: Settings
    emulator: Device
    rank: Rank
    watch: Watch

    @property
    def bsize(self) -> int:
        """The number of emulators of each rank; ``validate`` refuses auto, since all ranks must have equally many."""
        assert isinstance(self.settings.bsize, int)
        return self.settings.bsize


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
        """How many steps all emulators of all ranks have made; what a host has collected before counts none."""
        return int(self.trainer.get("global_step", 0))


tell = partial(print, flush=True)
"""What rank 0 says of the run."""


def train(settings: Settings, distributed: bool) -> None:
    """Trains as one rank of a launch, or alone. Raises DigirlDistError."""
    device = validate.refuse_unstartable(settings, command=validate.Command.ranks)
    with ExitStack() as stack:
        group, compute_device = stack.enter_context(join_ranks(settings, distributed))
        rank = group.rank
        watch = stack.enter_context(Watch(partial(say, rank), settings.distributed.gate_s).kept())
        context = RankContext(settings, device, rank, watch)
        agree(group, settings, context.emulator)
        learner = _learner(context, group, compute_device)
        folder = _opened(settings, stack) if rank.is_first else None
        state = resumed_state(folder, settings, group)
        if state.iteration:
            with loading("the newest checkpoint"):
                load_state(learner.agent, state.policy)
                load_state(learner.algorithm, state.trainer["algorithm"])
        collecting = Streams(streams_of(context, state.iteration), context.emulator.max_steps)
        stack.callback(collecting.close)
        _record_ranks(folder, group, settings, compute_device)
        report = None if folder is None else _reporter(context, folder, learner, state, stack)
        by_steps = algorithm_plugin(settings).learns_from is LearnsFrom.steps
        replay = None if by_steps else EpisodeReplay(state.replay, settings.trainer.replay_size)
        loop = RankLoop(learner, collecting, replay, EpisodeWindow(), report, settings.distributed.steps)
        if folder is not None and state.iteration >= settings.train_iterations:
            tell(f"{folder.root} has all {settings.train_iterations} iterations; set a larger train_iterations")
        loop.train(state.iteration, settings.train_iterations)
        if folder is not None:
            tell(f"run folder {folder.root}")


def check_launch(distributed: bool, rank: Rank | None) -> Rank:
    """Returns this process's rank. Raises SettingsError, with the remedy, if ``distributed`` contradicts the launch."""
    if distributed and rank is None:
        raise SettingsError(
            "--distributed was given, but torchrun's RANK, WORLD_SIZE and LOCAL_RANK are not set; "
            "start with torchrun --nproc_per_node=N -m digirl_dist.train … --distributed"
        )
    if not distributed and rank is not None and rank.world_size > 1:
        raise SettingsError(f"the launcher has started {rank.world_size} ranks; add --distributed, or start one")
    return rank or Rank()


@contextmanager
def join_ranks(settings: Settings, distributed: bool | None = None) -> Iterator[tuple[Group, str]]:
    """Joins the other ranks of the launch, if there are any, and leaves them at the end; yields group and device.

    ``distributed`` says whether several ranks are expected, and must agree with the launch; None accepts either.

    Raises SettingsError for a launch or a device that does not fit, PeerError if ranks do not come.
    """
    launched = launched_rank(os.environ)
    rank = (launched or Rank()) if distributed is None else check_launch(distributed, launched)
    if is_of_jax(os.environ):
        raise SettingsError("the ranks were started for JAX, by which skrl learns (examples/skrl_ppo.py); use torchrun")
    device = device_of(settings, launched)
    limits = GroupLimits(exchange_s=settings.trainer.exchange_s, gate_s=settings.distributed.gate_s)
    with joined(rank, device, limits) as group:
        yield group, device


def streams_of(context: RankContext, first: int = 0) -> list[Stream]:
    """Returns a stream for each emulator of this rank; closes those that have begun if another one cannot."""
    with ExitStack() as begun:
        streams = [begun.enter_context(closing(_stream(context, slot, first))) for slot in range(context.bsize)]
        begun.pop_all()
    return streams


def _stream(context: RankContext, slot: int, first: int) -> Stream:
    """Returns a stream that begins in iteration ``first``; its seed is the configured one plus this rank."""
    rank, emulator, settings = context.rank.rank, context.emulator, context.settings
    seed, group_size = settings.seed + rank, algorithm_plugin(settings).episodes_per_start
    watched = WatchedEmulator(emulator.factory(), context.watch, f"emulator {slot}")
    said = partial(say, context.rank)
    steady = emulator.spec.steady
    return Stream(watched, emulator.tasks, f"rank{rank}", slot, seed, first, group_size, say=said, steady=steady)


def evaluation_stream(context: RankContext) -> Stream:
    """Returns the stream of the evaluations: tasks of the test split, on seeds that training never draws."""
    settings, name = context.settings, f"rank{context.rank.rank}"
    tasks = schedule.test_tasks(settings)
    return Stream(
        WatchedEmulator(context.emulator.factory(), context.watch, "the emulator that evaluates"),
        tasks,
        name,
        _EVALUATION_SLOT,
        settings.seed,
        share="validate",
        say=lambda words: say(context.rank, f"has no figures of this evaluation: {words}"),
    )


def _learner(context: RankContext, group: Group, compute_device: str) -> RankLearner:
    """The first weights are the same on every rank, since they follow from the seed."""
    settings = context.settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        agent = Placed(starting(settings, agent_plugin(settings).build(context.emulator.spec)), compute_device)()
        agent.train(False)
        algorithm = build_algorithm(settings, context.emulator)(agent, OwnRows(group))
    return RankLearner(group, agent, algorithm, settings.seed + group.rank.rank)


def _opened(settings: Settings, stack: ExitStack) -> RunFolder:
    """Opens the run folder, which rank 0 alone has, until the end."""
    changes = provenance.changes_of(run_root(settings), conversion.as_mapping(settings))
    folder = stack.enter_context(RunFolder(run_root(settings), configuration.to_yaml(settings)))
    status = Status(folder.root / "status.json", doing="train on all ranks")
    status.write()
    stack.enter_context(status.until_the_end_of("the run"))
    provenance.record_start(folder.root, changes)
    return folder


def _checkpoints(folder: RunFolder, settings: Settings, policy: Mapping[str, Json] | None = None) -> Checkpoints:
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
    newest, state = _checkpoints(folder, settings).newest(), io.BytesIO()
    if newest is None:
        torch.save({"iteration": 0, "policy": {}, "trainer": {}}, state)
        return state.getvalue(), b""
    torch.save({"iteration": newest.iteration, "policy": newest.state(), "trainer": newest.trainer_state()}, state)
    uses_replay = algorithm_plugin(settings).learns_from is not LearnsFrom.steps
    capacity = settings.trainer.replay_size if uses_replay else 0
    replay = newest_of_each_rank(Store(folder.trajectories), newest.iteration, capacity, world_size)
    return state.getvalue(), to_parquet_bytes(replay)


def _record_ranks(folder: RunFolder | None, group: Group, settings: Settings, device: str) -> None:
    """Emits one event with every rank's number, effective seed, device and process."""
    own = {"rank": group.rank.rank, "seed": settings.seed + group.rank.rank, "device": device, "pid": os.getpid()}
    ranks = [json.loads(part) for part in group.gather(json.dumps(own).encode())]
    if folder is not None:
        events = folder.open_events()
        record_start(settings, events)
        events.emit("ranks", world_size=group.rank.world_size, ranks=ranks)
        events.close()


def _reporter(
    context: RankContext, folder: RunFolder, learner: RankLearner, state: ResumedState, stack: ExitStack
) -> Callable[[IterationReport], None]:
    from digirl_dist.assembly.run import followers
    from digirl_dist.report.metrics import Metrics, Outcomes
    from digirl_dist.train.reporter import RankZeroReporter, StreamEvaluator

    settings, measures = context.settings, context.settings.evaluation
    metrics = Metrics(folder.metrics)
    outcomes = Outcomes(tells_success(settings), metrics)
    metrics.make_up_for(state.iteration, Store(folder.trajectories), outcomes)
    events = Events(folder.events)
    stack.callback(events.close)
    log = followers(settings, folder, events)
    stack.callback(log.close)
    log.begin()
    stream = partial(evaluation_stream, context)
    return RankZeroReporter(
        learner=learner,
        evaluator=StreamEvaluator(stream, context.emulator.max_steps, measures.every, measures.episodes),
        trajectories=folder.trajectories,
        checkpoints=_checkpoints(folder, settings, describe_policy(settings, context.emulator.spec)),
        metrics=metrics,
        log=log,
        outcomes=outcomes,
        say=tell,
        steps=settings.distributed.steps * context.bsize * context.rank.world_size,
        global_step=state.global_step,
    ).report
