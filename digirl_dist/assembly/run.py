"""The composition root: puts the parts together that the settings name, and takes them down again."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from digirl_dist import host
from digirl_dist.assembly import schedule, validate
from digirl_dist.assembly.collector import RunContext, build_collector
from digirl_dist.assembly.parts import (
    agent_plugin,
    build_device,
    follow_verdicts,
    record_start,
    refuse_devices,
    run_root,
)
from digirl_dist.assembly.trainers import Learning
from digirl_dist.host import Evaluator
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.rank import Rank, launched_rank
from digirl_dist.report.follower import Followers
from digirl_dist.report.media import Media
from digirl_dist.report.metrics import Metrics
from digirl_dist.report.output import shown
from digirl_dist.report.progress import Progress
from digirl_dist.report.report import Report
from digirl_dist.settings import Settings, configuration, conversion
from digirl_dist.settings.run import only_measures
from digirl_dist.storage import provenance
from digirl_dist.storage.disk_full import WaitForSpace
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.trajectory_store import Store


def run(
    settings: Settings,
    source: configuration.Source | None = None,
    progress: Progress | None = None,
) -> None:
    """Builds the parts that ``settings`` ask for, runs the loop, and takes everything down again.

    ``source`` is where they came from: workers that are added there while the run goes on join it. ``progress`` shows
    how it gets on, on stdout if none is given. Of the ranks of a ``torchrun run.py``, the first does all
    this, and the others learn with it.
    """
    rank = launched_rank(os.environ)
    if progress is not None:
        _run(settings, rank, source, progress)
        return
    with shown("load the parts of the run", sys.stdout if rank is None or rank.is_first else None) as own:
        _run(settings, rank, source, own)


def measure(settings: Settings, progress: Progress) -> None:
    """Makes a run that only measures, in this process alone, whatever launch it is of."""
    _run(settings, None, None, progress)


def _run(settings: Settings, rank: Rank | None, source: configuration.Source | None, progress: Progress) -> None:
    validate.refuse_contradictions(settings, rank=rank)
    ahead = schedule.iterations_ahead(settings)
    device = build_device(settings, settings.emulator)
    agent = agent_plugin(settings).build(device.spec)
    refuse_devices(settings, rank)
    Metrics(run_root(settings) / "metrics.jsonl")  # a damaged file is refused before anything is written
    learning = Learning(settings, device, agent, rank, progress.status)
    if rank is None or rank.is_first:
        _lead(learning, source, ahead, progress)
    else:
        with telling(rank):
            learning.follow()


def _lead(learning: Learning, source: configuration.Source | None, ahead: int, progress: Progress) -> None:
    settings, device, status = learning.settings, learning.device, progress.status
    root, plan = run_root(settings), schedule.plan(settings, device.tasks)
    with ExitStack() as stack:
        config = conversion.as_mapping(settings)
        changes = provenance.changes_of(root, config)
        text = configuration.to_yaml(settings)
        folder = stack.enter_context(RunFolder(root, text, keep=only_measures(settings)))
        provenance.record_start(root, changes)
        follow_verdicts(progress, settings)
        events = folder.open_events((progress.listen, provenance.WorkerRecord(root).listen))
        stack.callback(events.close)
        record_start(settings, events)
        status.path = folder.root / "status.json"
        write_policy = WaitForSpace(events, status, settings.limits.full_disk_s, folder.refuse_if_gone)
        media = Media(folder.media, settings.media, events)
        log = followers(settings, folder, events)
        report = Report(folder, events, progress, log, media, write_policy, device.spec.steady)
        stack.callback(report.close)  # after the next line, so that the page says how the run ended
        what = "the measurement" if only_measures(settings) else "the run"
        stack.enter_context(status.until_the_end_of(what, events))
        status.host("load the agent and its newest checkpoint")
        trainer = learning.trainer(stack, write_policy)
        stack.callback(trainer.close)
        measured = trainer.resume() if only_measures(settings) else None
        if measured:
            provenance.note_measurement(folder.evaluation(measured.iteration), provenance.measured(config, plan.tasks))
        store = Store(folder.trajectories, write_policy)
        status.host("prepare the workers")
        store.sweep()
        shared = settings, device, learning.agent, plan, folder, store, events, status
        version = measured.iteration if measured else None
        collector = build_collector(RunContext(*shared, version, source), stack)
        stack.callback(status.host, "stop the workers")
        if measured:
            host.evaluate(collector, measured, store, plan, report, settings.eval_iterations)
        else:
            every, last = settings.evaluation.every, settings.train_iterations
            test_plan = schedule.evaluation_plan(settings)
            evaluator = Evaluator(collector, test_plan, store, learning.checkpoints(write_policy), report, every, last)
            host.train(collector, trainer, store, plan, evaluator, report, last, ahead)


def followers(settings: Settings, folder: RunFolder, events: Events) -> Followers:
    """Returns the loggers that the settings choose."""

    def failed(name: str, reason: str) -> None:
        events.emit("logger_failed", logger=name, reason=reason)

    return Followers(settings.loggers, folder.root, failed)
