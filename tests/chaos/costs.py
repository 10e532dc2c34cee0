"""What a lie of valid content costs: the host's memory, events, the others' time, and how long Ctrl-C takes.

Each lie has a run of its own with four workers, of which the last one lies; the same run without it is the measure.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos.ground import SLOTS, RunContext, ground
from chaos.hostility import HOSTILE_LIMITS, Liar
from chaos.lies import Lie
from chaos.processes import eventually, processes_with
from chaos.stages import EPISODES, Phase
from chaos.watch import Event, Watch
from digirl_dist.settings import Inference

MOST_MB, MOST_EVENTS_MB, LEAST_SHARE, MOST_CTRL_C_S = 200.0, 1.0, 0.95, 10.0
"""More memory than without the liar; events of a worker in a minute; the others' rate; how long the host may end."""
_NAMED_S, _OUT_S = 10.0, 30.0
_MACHINES = 4
_LIMITS = {**HOSTILE_LIMITS, "limits.stop_s": 5.0}
_START_S, _END_S, _RESTART_S = 300.0, 60.0, 300.0
_WATCHED_S = 10.0
"""How long the host collects, where that has no end."""
_LONGEST_S = 90.0
_MORE_S = 6.0
"""Ctrl-C comes within this time, whatever the host does then."""
_EVERY_S = 0.4
_BASELINE_EVERY = 8
"""Runs with a liar, after which the run without it is measured again: a machine has other things to do as well."""


@dataclass
class Cost:
    """What one run cost. Times are seconds from when the lie was told first; None: not within the limit."""

    phase: Phase
    lie: Lie | None
    peak_mb: float = 0.0
    """The most memory that the host and its children had."""
    events_mb: float = 0.0
    """Events that are not of the honest workers, for a minute."""
    rate: float = 0.0
    """Episodes per second of the honest workers, while the host collects."""
    pause_s: float = 0.0
    """Time between their last episode of the first round and the first of the second."""
    named_s: float | None = None
    out_s: float | None = None
    ctrl_c_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    """What no comparison is needed for."""

    @property
    def round_s(self) -> float:
        """Returns how long the honest workers need for a round and the pause after it."""
        return EPISODES / self.rate + self.pause_s if self.rate else float("inf")

    def share(self, alone: Cost) -> float:
        """Returns the others' rate as a share of what it is without the liar."""
        return alone.round_s / self.round_s if self.rate else 0.0

    def broken(self, alone: Cost) -> list[str]:
        """Returns the budgets that were not kept, compared with the same run without the liar."""
        if not alone.rate:
            return [*self.problems, f"nothing to compare it with: {'; '.join(alone.problems)}"]
        found = [*self.problems]
        if (more := self.peak_mb - alone.peak_mb) > MOST_MB:
            found.append(f"{more:.0f} MB more memory")
        if self.events_mb > MOST_EVENTS_MB:
            found.append(f"{self.events_mb:.1f} MB of events a minute")
        if self.share(alone) < LEAST_SHARE:
            found.append(f"the others at {self.share(alone):.0%}")
        if self.ctrl_c_s > MOST_CTRL_C_S:
            found.append(f"Ctrl-C took {self.ctrl_c_s:.0f} s")
        return found


class Memory(threading.Thread):
    """Looks at the memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory", daemon=True)
        self.peak_mb = 0.0
        self._process = psutil.Process(pid)
        self._command = self._process.cmdline()
        self.start()

    def run(self) -> None:
        with suppress(psutil.Error, OSError):  # it has ended
            while self._process.is_running():
                shared = sum(map(self._mb, [self._process, *self._process.children(recursive=True)]))
                self.peak_mb = max(self.peak_mb, shared, self._highest_mb())
                time.sleep(_EVERY_S)

    def _mb(self, process: psutil.Process) -> float:
        """Returns its share of the memory; of a child that has yet to become a program, nothing: it is the parent's."""
        try:
            is_copy = process != self._process and process.cmdline() == self._command
            return 0.0 if is_copy else float(process.memory_full_info().pss) / (1 << 20)
        except psutil.Error:  # it has ended meanwhile
            return 0.0

    def _highest_mb(self) -> float:
        """Returns the process's own peak, which no look may have met."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


class Scales:
    """Has the last of the machines tell lies in one run after the other, and weighs each run."""

    def __init__(self, here: RunContext, seed: int) -> None:
        self._here = here
        self._machine = here.machines[-1]
        self._honest = {machine.name for machine in here.machines[:-1]}
        self._rng = random.Random(seed)
        self._runs = 0

    def weigh(self, phase: Phase, lie: Lie | None, screens: bool) -> Cost:
        """Runs once; without a lie, the worker that would lie is not there."""
        cost, here = Cost(phase, lie), self._here
        self._runs += 1
        here.run = here.folder / "host" / f"run{self._runs}"
        here.program = phase.program(screens)
        self._machine.told.unlink(missing_ok=True)
        self._machine.hostile.write_text(lie.name if lie else "")
        self._machine.relay.refuse(lie is None)
        try:
            here.start_host()
            with _watching(here.run) as watch:
                self._weigh(cost, watch)
            if phase is Phase.learning and lie is not None and lie.forge is not None and not lie.is_bounded:
                self._go_on(cost)
        finally:
            self._clean_up()
        return cost

    def _weigh(self, cost: Cost, watch: Watch) -> None:
        memory = Memory(self._here.host.pid)
        eventually(lambda: watch.first(0.0, self._is_others) or self._here.host.poll() is not None, _START_S)
        if watch.first(0.0, self._is_others) is None:
            cost.problems.append(f"it did not start: {self._last_words()}")
            return
        began = time.monotonic()
        self._await_costs(cost, watch, began)
        cost.events_mb = self._events_mb(watch, began)
        if self._here.host.poll() is not None:
            cost.problems.append(f"the host ended by itself: {self._last_words()}")
        else:
            self._press_ctrl_c(cost)
        cost.peak_mb = memory.peak_mb
        cost.rate, cost.pause_s = self._rate(watch), self._pause_s(watch)

    def _await_costs(self, cost: Cost, watch: Watch, began: float) -> None:
        """Waits until the phase is over, and the liar named and out of service or too late for that."""
        liar, told_at, more_s = Liar(self._here, watch, self._machine), None, self._rng.uniform(0.0, _MORE_S)
        over_at: float | None = None
        while self._here.host.poll() is None and (now := time.monotonic()) < began + _LONGEST_S:
            time.sleep(_EVERY_S)
            if over_at is None and self._is_over(cost.phase, watch, began):
                over_at = now + more_s
            if told_at is None and self._machine.told.exists():
                told_at = now
            if told_at is not None:
                self._look_at(cost, liar, watch, told_at)
            if over_at is not None and now > over_at and not self._is_awaited(cost, told_at):
                return

    def _look_at(self, cost: Cost, liar: Liar, watch: Watch, told_at: float) -> None:
        """Notes when the liar is named, and out of service."""
        since = time.monotonic() - told_at
        is_named = liar.is_named(since + _EVERY_S) or (cost.phase is Phase.idle and self._is_troubled(watch))
        if cost.named_s is None and is_named:
            cost.named_s = since
        if cost.out_s is None and (out := liar.out(0.0)) is not None:
            cost.out_s = max(0.0, out.at - told_at)

    def _is_troubled(self, watch: Watch) -> bool:
        """Returns whether an event gives a reason: a fleet has no status that ``digirl-dist why`` could show."""
        return watch.first(0.0, lambda one: one.of(self._machine.name) and bool(one.content.get("reason"))) is not None

    def _is_awaited(self, cost: Cost, told_at: float | None) -> bool:
        if cost.lie is None or cost.lie.is_bounded:
            return False
        is_late = told_at is not None and time.monotonic() > told_at + _OUT_S
        return not is_late and None in (cost.named_s, cost.out_s)

    def _is_over(self, phase: Phase, watch: Watch, began: float) -> bool:
        """Returns whether the host has collected for long enough, or begun to collect after a pause."""
        if phase is Phase.collecting:
            return time.monotonic() > began + _WATCHED_S
        return watch.first(began, lambda one: self._is_others(one) and one.content["iteration"] > 0) is not None

    def _press_ctrl_c(self, cost: Cost) -> None:
        pressed = time.monotonic()
        status = self._here.end_host(_END_S, signal.SIGINT)
        cost.ctrl_c_s = time.monotonic() - pressed
        if status not in (None, 130):
            cost.problems.append(f"after Ctrl-C, status {status}: {self._last_words()}")

    def _go_on(self, cost: Cost) -> None:
        """Starts the same command again, which must finish another iteration."""
        if self._here.host.poll() is None:
            self._here.kill_host()
        metrics = self._here.run / "metrics.jsonl"
        before = _lines(metrics)
        self._here.start_host()
        goes_on = eventually(lambda: _lines(metrics) > before or self._here.host.poll() is not None, _RESTART_S)
        if not goes_on or self._here.host.poll() is not None:
            cost.problems.append(f"the same command does not go on: {self._last_words()}")

    def _is_others(self, event: Event) -> bool:
        return event.kind == "episode" and event.content["worker"] in self._honest

    def _events_mb(self, watch: Watch, began: float) -> float:
        """Returns the bytes of a minute: all that there are, or as they came in the second half of the time."""
        now = time.monotonic()
        half = began + (now - began) / 2
        sizes = [(one.at, one.size) for one in watch.events[:] if one.content.get("worker") not in self._honest]
        late = sum(size for at, size in sizes if at > half) * 60.0 / max(1.0, now - half)
        return max(sum(size for _, size in sizes), late) / (1 << 20)

    def _rate(self, watch: Watch) -> float:
        """Returns the others' episodes per second, without the beginning and the end of each round."""
        count, seconds, edge = 0, 0.0, SLOTS * len(self._honest)
        for times in self._times(watch).values():
            middle = times[edge:-edge]
            count, seconds = count + max(0, len(middle) - 1), seconds + (middle[-1] - middle[0] if middle else 0.0)
        return count / seconds if seconds else 0.0

    def _pause_s(self, watch: Watch) -> float:
        times = self._times(watch)
        return times[1][0] - times[0][-1] if times.get(0) and times.get(1) else 0.0

    def _times(self, watch: Watch) -> dict[int, list[float]]:
        """Returns when the others' episodes of each round landed."""
        found: dict[int, list[float]] = {}
        for one in filter(self._is_others, watch.events[:]):
            found.setdefault(one.content["iteration"], []).append(one.at)
        return found

    def _last_words(self) -> str:
        return " | ".join((self._here.folder / "host.log").read_text(errors="replace").splitlines()[-2:])[:300]

    def _clean_up(self) -> None:
        """Ends what is left of the run, and deletes its files."""
        self._here.kill_host()
        for machine in self._here.machines:
            for process in processes_with(machine.jobs):
                with suppress(psutil.Error):
                    process.kill()
            for path in machine.jobs.glob("*"):
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self._here.run, ignore_errors=True)


@contextmanager
def _watching(run: Path) -> Iterator[Watch]:
    watch = Watch(run)
    try:
        yield watch
    finally:
        watch.close()


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def judge_content(pairs: Sequence[tuple[Phase, Lie]], seed: int) -> list[tuple[Cost, list[str]]]:
    """Tells each lie in its phase, and prints a row for it; returns the costs with the budgets that were broken."""
    found: list[tuple[Cost, list[str]]] = []
    print(f"{'phase':11}{'lie':59}{'+MB':>6}{'ev MB/min':>10}{'others':>8}{'named':>8}{'out':>8}{'Ctrl-C':>8}  verdict")
    with ground(_MACHINES, Inference.worker, _LIMITS, has_small_disks=False) as here:
        scales, alone, ages = Scales(here, seed), dict[tuple[Phase, bool], Cost](), dict[tuple[Phase, bool], int]()
        for phase, lie in sorted(pairs, key=lambda pair: (pair[0].value, pair[1].screens)):
            kind = phase, lie.screens
            if ages.get(kind, 0) % _BASELINE_EVERY == 0:
                alone[kind] = scales.weigh(phase, None, lie.screens)
                _show(alone[kind], alone[kind], alone[kind].problems)
            ages[kind] = ages.get(kind, 0) + 1
            cost = scales.weigh(phase, lie, lie.screens)
            if cost.broken(alone[kind]) == [f"the others at {cost.share(alone[kind]):.0%}"]:  # the machine may be busy
                alone[kind] = scales.weigh(phase, None, lie.screens)
                cost = max(cost, scales.weigh(phase, lie, lie.screens), key=lambda one: one.share(alone[kind]))
            broken = [*cost.broken(alone[kind]), *_unnamed(cost)]
            _show(cost, alone[kind], broken)
            found.append((cost, broken))
    return found


def _unnamed(cost: Cost) -> list[str]:
    """Returns what is missing of a lie that may not be believed."""
    if cost.lie is None or cost.lie.is_bounded:
        return []
    limits = (("named", cost.named_s, _NAMED_S), ("out of service", cost.out_s, _OUT_S))
    return [f"not {word} in {limit:.0f} s" for word, at, limit in limits if at is None or at > limit]


def _show(cost: Cost, alone: Cost, broken: Sequence[str]) -> None:
    name = cost.lie.name if cost.lie else f"(none: {cost.peak_mb:.0f} MB, {cost.rate:.1f} episodes/s)"
    named, out = ("-" if at is None else f"{at:.1f} s" for at in (cost.named_s, cost.out_s))
    verdict = f"FAILED: {'; '.join(broken)}" if broken else "ok" if cost.out_s is not None else "harmless"
    figures = f"{cost.peak_mb - alone.peak_mb:6.0f}{cost.events_mb:10.2f}{cost.share(alone):8.0%}{named:>8}{out:>8}"
    print(
        f"{cost.phase.value:11}{name:59}{figures}{cost.ctrl_c_s:6.1f} s  {verdict if cost.lie else ''}",
        flush=True,
    )
