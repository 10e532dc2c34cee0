"""The invariants that must hold after any plan of faults, checked on the run's files and on outside observations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chaos.forgery import MARK
from chaos.ground import ROLLOUT, SLOTS
from chaos.trial import Trial
from chaos.watch import Watch
from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_tasks
from digirl_dist.settings import RehearsalSettings
from digirl_dist.settings.plugins import values
from digirl_dist.storage import parquet
from digirl_dist.tasks import Key, Plan
from digirl_dist.trajectory import Observation, Trajectory

_EMULATOR = RehearsalSettings(reset_s=0.2, step_s=0.12, steps=6)
_SHARE, _SEEN_S = 0.02, 1.6
"""Tolerances of slot-seconds: the share that may be missing of the whole; and the time between an iteration's last
episode and the booking, because the host waits up to a second for a worker that does not answer."""

_AFTER_S = 5.0
"""Time in which an episode that a liar has announced may still land."""


@dataclass(frozen=True)
class Invariant:
    """An invariant: ``broken`` lists its violations; ``checked`` describes the extent of the check."""

    name: str
    checked: str
    broken: list[str]


def judge(
    run: Path, iterations: int, watch: Watch, trials: list[Trial], left: list[str], host: list[str]
) -> list[Invariant]:
    trajectories = [one for path in sorted((run / "trajectories").glob("[0-9]*.parquet")) for one in parquet.read(path)]
    expected = {Key(iteration, index) for iteration in range(iterations) for index in range(ROLLOUT)}
    found = Counter(trajectory.ticket.key for trajectory in trajectories)
    landed = Counter(
        Key(event.content["iteration"], event.content["ticket"]) for event in watch.events if event.kind == "episode"
    )
    twice = [f"{key} in {count} rows" for key, count in found.items() if count > 1]
    twice += [f"{key} landed {count} times" for key, count in landed.items() if count > 1]
    lied = [(trial.machine, *trial.lied) for trial in trials if trial.lied]
    made_up = set(_made_up(watch, trials))
    overdue = [f"{name}: {said}" for at, name, said in watch.overdue if not _lies(lied, name, at, at)]
    spans = list(_spans(run, watch, lied))
    faults = f"{len(trials)} faults"
    return [
        Invariant("0 lost", f"{len(expected)} tickets", [str(key) for key in sorted(expected - set(found))]),
        Invariant("0 repeated", f"{len(trajectories)} episodes", twice),
        Invariant("0 stale, forged or altered", f"{len(trajectories)} episodes", list(_foreign(trajectories, made_up))),
        Invariant("no wait past its deadline", "status every second", overdue),
        Invariant(
            "every fault noticed, explained, got over",
            faults,
            [f"{t.fault} ({t.machine}): {t.problem}" for t in trials if t.problem],
        ),
        Invariant("the host ends only when it is ended", "every end", host),
        Invariant("slot_seconds add up", f"{len(spans)} rows of iterations", [said for said in spans if said]),
        Invariant("no process left", "after the orphan time", left),
    ]


def _made_up(watch: Watch, trials: list[Trial]) -> Iterator[Key]:
    """Yields the tickets whose episodes landed while their worker lied in content."""
    lied = [(one.machine, one.lied[0], one.lied[1] + _AFTER_S) for one in trials if one.lied and one.makes_up]
    for event in watch.events:
        if event.kind == "episode" and _lies(lied, event.content["worker"], event.at, event.at):
            yield Key(event.content["iteration"], event.content["ticket"])


def _foreign(trajectories: list[Trajectory], made_up: Collection[Key]) -> Iterator[str]:
    """Yields the episodes that differ from what their ticket's emulator must have shown, but for the ``made_up``."""
    emulator = RehearsalEmulator(**values(_EMULATOR), sleep=lambda seconds: None)
    planned: dict[int, Any] = {}
    for one in trajectories:
        ticket = one.ticket
        if ticket.iteration not in planned:
            planned[ticket.iteration] = Plan(rehearsal_tasks(), ROLLOUT, seed=0).tickets(
                ticket.iteration, ticket.iteration
            )
        wanted = planned[ticket.iteration][ticket.index]
        if (ticket.seed, ticket.policy_version, ticket.task.id) != (wanted.seed, wanted.policy_version, wanted.task.id):
            yield f"{ticket.key} is of another ticket: {ticket}"
        elif ticket.key in made_up:
            continue
        elif one.steps[0].observation.text == MARK or not _is_as_shown(one, emulator):
            yield f"{ticket.key} ({one.episode_id}) is not what its emulator showed"


def _is_as_shown(trajectory: Trajectory, emulator: RehearsalEmulator) -> bool:
    seen = emulator.reset(rehearsal_tasks()[0], trajectory.ticket.seed)
    for step in trajectory.steps:
        if step.observation.vector is None or not np.array_equal(_vector(seen), step.observation.vector):
            return False
        shown = emulator.step(step.action)
        if abs(shown.reward - step.reward) > 1e-6 or shown.terminated != step.terminated:
            return False
        seen = shown.observation
    return True


def _vector(seen: Observation) -> np.ndarray:
    assert seen.vector is not None, "the rehearsal emulator shows numbers"
    return seen.vector


Lied = Sequence[tuple[str, float, float]]
"""Worker, beginning and end."""


def _lies(lied: Lied, worker: str, since: float, until: float) -> bool:
    return any(name == worker and begun < until and since < ended for name, begun, ended in lied)


def _spans(run: Path, watch: Watch, lied: Lied) -> Iterator[str]:
    """Yields a text for each row of iterations of one host and a worker: empty, or the error in slot-seconds.

    It compares rows of iterations, because worker and watcher see the end of an iteration at slightly different times.
    A worker's losses are booked as well. What a liar says of its own seconds is not compared.
    """
    lines = {line["iteration"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    ends = {event.content["iteration"]: event.at for event in watch.events if event.kind == "episode"}
    for worker in sorted({name for line in lines.values() for name in line.get("slot_seconds_by_worker", {})}):
        counted = {number: _counted(line, worker) for number, line in lines.items()}
        row: list[int] = []
        for number in range(max(lines) + 2):
            is_whole = counted.get(number) and counted.get(number - 1) and _is_of_one_host(watch, ends, number)
            if is_whole and not _lies(lied, worker, ends[number - 1] - 2.0, ends[number] + 2.0):
                row.append(number)
            elif row:
                whole = SLOTS * (ends[row[-1]] - ends[row[0] - 1])
                yield _compare(worker, row, sum(counted[one] for one in row), whole)
                row = []


def _counted(line: dict[str, Any], worker: str) -> float:
    return float(sum(line.get("slot_seconds_by_worker", {}).get(worker, {}).values()))


def _is_of_one_host(watch: Watch, ends: Mapping[int, float], number: int) -> bool:
    """Returns whether one host ran without a stop from the end of the previous iteration to the end of this one."""
    if not {number - 1, number} <= set(ends):
        return False
    begun = [event.at for event in watch.events if event.kind == "run_started"]
    return not any(ends[number - 1] - 2.0 < at < ends[number] + 2.0 for at in [*begun, *watch.held_at])


def _compare(worker: str, row: Sequence[int], counted: float, whole: float) -> str:
    if abs(counted - whole) <= _SHARE * whole + SLOTS * _SEEN_S:
        return ""
    return f"{worker} in iterations {row[0]} to {row[-1]}: {counted:.2f} s of {whole:.2f} slot-seconds"
