"""Looks for seeds that break a promise, and makes what was found small."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from simulate.run import SimulatedRun
from simulate.scenario import Scenario, draw
from simulate.world import Violation


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``promise`` is empty if none was broken; ``digest`` is that of its whole trace."""

    seed: int
    promise: str
    detail: str
    digest: str
    virtual_s: float
    lines: tuple[str, ...] = ()


def outcome(scenario: Scenario, keep_trace: bool = False) -> Outcome:
    """Runs the scenario. What the code under test raises, and should not, breaks the promise ``no exception``."""
    run = SimulatedRun(scenario, keep_trace)
    promise = detail = ""
    try:
        run.run()
    except Violation as violation:
        promise, detail = violation.promise, str(violation)
    except Exception as error:
        promise, detail = "no exception", "".join(traceback.format_exception(error, limit=-6))
    lines = tuple(run.world.lines or ())
    return Outcome(scenario.seed, promise, detail, run.world.digest, run.world.now, lines)


def examine(seed: int, workers: int | None = None, slots: int | None = None) -> Outcome:
    """Runs what a seed draws."""
    return outcome(draw(seed, workers, slots))


def shrunk(scenario: Scenario, promise: str) -> Scenario:
    """Returns a smaller run of the same seed that breaks the same promise: nothing can be taken from it alone."""
    smaller = next((one for one in _smaller(scenario) if outcome(one).promise == promise), None)
    return scenario if smaller is None else shrunk(smaller, promise)


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    numbers = [fault.number for fault in scenario.faults]
    for number in numbers:
        yield scenario.smaller(faults=[other for other in numbers if other != number])
    if len(scenario.machines) > 1:
        yield scenario.smaller(workers=len(scenario.machines) - 1)
    if scenario.schedule.iterations > 1:
        yield scenario.smaller(iterations=scenario.schedule.iterations - 1)
    if scenario.schedule.rollout_size > 1:
        yield scenario.smaller(tickets=scenario.schedule.rollout_size // 2)
        yield scenario.smaller(tickets=scenario.schedule.rollout_size - 1)


def command(scenario: Scenario) -> str:
    """Returns the command that runs it again."""
    schedule, faults = scenario.schedule, ",".join(str(fault.number) for fault in scenario.faults)
    size = f"--workers {len(scenario.machines)} --tickets {schedule.rollout_size} --iterations {schedule.iterations}"
    return f"script/simulate --seed {scenario.seed} {size} --faults '{faults}' --trace"
