"""Starts one rank: checks how it was launched, builds its parts, resumes what the run folder holds, and trains."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from digirl_dist.agent.placement import Placed
from digirl_dist.algorithm.plugins import LearnsFrom
from digirl_dist.assembly import schedule, validate
from digirl_dist.assembly.facts import facts_of
from digirl_dist.assembly.parts import (
    algorithm_plugin,
    build_agent,
    build_algorithm,
    record_start,
    run_root,
    starting,
    tells_success,
)
from digirl_dist.assembly.policy import describe_policy
from digirl_dist.emulator.plugins import Device
from digirl_dist.parallel.agreement import agree
from digirl_dist.parallel.failure import say
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.peers import OwnRows
from digirl_dist.parallel.rank import Rank
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.settings import Settings, configuration
from digirl_dist.storage import provenance
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.train.data_selector import DataSelector, EpisodeReplay, NewestFragments
from digirl_dist.train.learner import RankLearner
from digirl_dist.train.loop import NullReporter, RankLoop, Reporter
from digirl_dist.train.rendezvous import Rendezvous, join_ranks
from digirl_dist.train.resume import ResumedState, checkpoints_of, resumed_state
from digirl_dist.train.streams import Stream, Streams
from digirl_dist.train.watched_emulator import Watch, WatchedEmulator
from digirl_dist.trajectory import Trajectory

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


tell = partial(print, flush=True)
"""What rank 0 says of the run."""


def train(settings: Settings, distributed: bool) -> None:
    """Trains as one rank of a launch, or alone. Raises DigirlDistError."""
    device = validate.refuse_unstartable(settings, command=validate.Command.ranks)
    with ExitStack() as stack:
        rendezvous = stack.enter_context(join_ranks(settings, distributed))
        group, rank = rendezvous.group, rendezvous.group.rank
        watch = stack.enter_context(Watch(partial(say, rank), settings.distributed.gate_s).kept())
        context = RankContext(settings, device, rank, watch)
        agree(group, facts_of(settings, context.emulator))
        learner = _learner(context, rendezvous)
        streams = Streams([stream_of(context, slot) for slot in range(context.bsize)], context.emulator.max_steps)
        stack.callback(streams.close)
        changes = provenance.changes_of(run_root(settings), configuration.as_mapping(settings))
        folder = None
        if rank.is_first:
            folder = stack.enter_context(RunFolder(run_root(settings), configuration.to_yaml(settings)))
            status = Status(folder.root / "status.json", doing="train on all ranks")
            status.write()
            stack.enter_context(status.until_the_end_of("the run"))
        state, window = resumed_state(folder, settings, group), EpisodeWindow()
        state.restore(rank, learner, streams, window)
        _record_ranks(folder, group, settings, rendezvous.device)
        if folder is not None:
            provenance.record_start(folder.root, changes)
        reporter: Reporter = NullReporter()
        if folder is not None:
            reporter = _rank_zero_reporter(context, folder, learner, state, stack)
        selector = _data_selector(settings, state.replay)
        loop = RankLoop(group, learner, streams, selector, window, reporter, settings.distributed.steps)
        if folder is not None and state.iteration >= settings.train_iterations:
            tell(f"{folder.root} has all {settings.train_iterations} iterations; set a larger train_iterations")
        loop.train(state.iteration, settings.train_iterations)
        if folder is not None:
            tell(f"run folder {folder.root}")


def stream_of(context: RankContext, slot: int) -> Stream:
    """Returns a stream of this rank; its seed is the configured one plus the rank."""
    rank, emulator, settings = context.rank.rank, context.emulator, context.settings
    seed, group_size = settings.seed + rank, algorithm_plugin(settings).episodes_per_start
    watched = WatchedEmulator(emulator.factory(), context.watch, f"emulator {slot}")
    return Stream(watched, emulator.tasks, f"rank{rank}", slot, seed, group_size, say=partial(say, context.rank))


def evaluation_stream(context: RankContext) -> Stream:
    """Returns the stream of the evaluations: tasks of the test split, on seeds that training never draws."""
    settings, name = context.settings, f"rank{context.rank.rank}"
    tasks = schedule.test_tasks(settings)
    watched = WatchedEmulator(context.emulator.factory(), context.watch, "the emulator that evaluates")
    return Stream(
        watched,
        tasks,
        name,
        _EVALUATION_SLOT,
        settings.seed,
        share="validate",
        say=lambda words: say(context.rank, f"has no figures of this evaluation: {words}"),
    )


def _learner(context: RankContext, rendezvous: Rendezvous) -> RankLearner:
    """The first weights are the same on every rank, since they follow from the seed."""
    settings, group = context.settings, rendezvous.group
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        agent = Placed(starting(settings, build_agent(settings, context.emulator.spec)), rendezvous.acts_on)()
        agent.train(False)
        algorithm = build_algorithm(settings, context.emulator)(agent, OwnRows(group))
    return RankLearner(group, agent, algorithm, settings.seed + group.rank.rank)


def _data_selector(settings: Settings, replay: list[Trajectory]) -> DataSelector:
    if algorithm_plugin(settings).learns_from is LearnsFrom.steps:
        return NewestFragments()
    return EpisodeReplay(replay, settings.trainer.replay_size)


def _record_ranks(folder: RunFolder | None, group: Group, settings: Settings, device: str) -> None:
    """Emits one event with every rank's number, effective seed, device and process."""
    own = {"rank": group.rank.rank, "seed": settings.seed + group.rank.rank, "device": device, "pid": os.getpid()}
    ranks = [json.loads(part) for part in group.gather(json.dumps(own).encode())]
    if folder is not None:
        events = folder.open_events()
        record_start(settings, events)
        events.emit("ranks", world_size=group.rank.world_size, ranks=ranks)
        events.close()


def _rank_zero_reporter(
    context: RankContext, folder: RunFolder, learner: RankLearner, state: ResumedState, stack: ExitStack
) -> Reporter:
    from digirl_dist.assembly.run import experiment_log
    from digirl_dist.report.metrics import Metrics, Outcomes
    from digirl_dist.train.reporter import RankZeroReporter, StreamEvaluator

    settings, own = context.settings, context.settings.distributed
    metrics = Metrics(folder.metrics)
    outcomes = Outcomes(tells_success(settings), metrics)
    metrics.make_up_for(state.iteration, Store(folder.trajectories), outcomes)
    events = Events(folder.events)
    stack.callback(events.close)
    log = experiment_log(settings, folder, events)
    stack.callback(log.close)
    log.begin(state.iteration, metrics.after, (), settings.train_iterations)
    stream = partial(evaluation_stream, context)
    return RankZeroReporter(
        learner=learner,
        evaluator=StreamEvaluator(stream, context.emulator.max_steps, own.eval_freq, own.eval_episodes),
        trajectories=folder.trajectories,
        checkpoints=checkpoints_of(folder, settings, describe_policy(settings, context.emulator.spec)),
        metrics=metrics,
        log=log,
        outcomes=outcomes,
        say=tell,
        steps=own.steps * context.bsize * context.rank.world_size,
        global_step=state.global_step,
        absent=state.states[context.rank.world_size :],
    )
