"""Tells people how a command gets on: what it does now, who of the workers does what, what happened, what is left."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from digirl_dist.plain_text import one_line
from digirl_dist.storage.status import RoundStatus, Status
from digirl_dist.tasks import Round
from digirl_dist.types import Clock, Json
from digirl_dist.user_code.blame import at_work

if TYPE_CHECKING:
    from digirl_dist.report.metrics import Figures

_EARLIEST_GUESS = 0.2
"""Share of the first iteration's episodes from which its length is extrapolated."""
_PATIENCE_S = 10.0
_EVERY_S = 30.0
_MOST_REASONS = 200
"""Reasons that are told apart."""
_REASONS = ("reason", "doing", "run_path")
_COMPARED = 300
"""Characters of a reason."""


class Output(Protocol):
    """Where progress is shown: the lines of a file, or a terminal."""

    def line(self, text: str, style: str = "") -> None:
        """Adds a line for good, from any thread. ``style`` is empty, bold, red or yellow."""

    def check(self) -> None:
        """Raises BrokenPipeError if nobody reads the output any more."""


class Progress:
    """What ``output`` shows beside ``status``: speeds, the time left, and messages, each reason once with a count."""

    def __init__(self, status: Status, output: Output, clock: Clock = time.monotonic) -> None:
        self.status = status
        self.iterations: int | None = None
        """How many there will be."""
        self.finished = 0
        """How many there are."""
        self.verdict = "episode"
        """The event that tells whether an episode was a success: ``judged`` where a judge decides."""
        self.tells_success = True
        """Whether success means something even while all episodes are alike in it."""
        self._first = 0
        self.began_at = clock()
        self._output = output
        self._clock = clock
        self._lock = threading.Lock()
        self._repeats = Repeats(clock)
        self._round: Round | None = None
        self._verdicts: Counter[bool] = Counter()
        self._iteration_at: float | None = None
        self._took_s: deque[float] = deque(maxlen=5)

    def begin(self, finished: int, iterations: int) -> None:
        """Notes how many iterations there are already, and how many there will be."""
        self._first = self.finished = finished
        self.iterations, self._iteration_at = iterations, self._clock()

    def listen(self, kind: str, content: dict[str, Json]) -> None:
        """Handles an event: counts an episode, or prints a message about a fault."""
        with self._lock:
            if kind in ("episode", "judged"):
                self._enter(Round(content["iteration"], content["purpose"], content.get("measured", 0)))
                if kind == self.verdict:
                    self._verdicts[bool(content["success"])] += 1
                return
        text = message(kind, content)
        if text is not None and self._repeats.is_new(kind, content):
            self.say(text, "" if kind in _HARMLESS else "yellow")

    def iteration(self, figures: Figures) -> None:
        """Prints the line of a finished iteration. Raises BrokenPipeError if nobody reads the output."""
        now = self._clock()
        if self._iteration_at is not None:
            self._took_s.append(now - self._iteration_at)
        self._iteration_at, self.finished = now, figures["iteration"] + 1
        shown = {name: key for name, key in _SHOWN.items() if figures.get(key) is not None}
        parts = [f"{name} {figures[key]:.2f}{' s' * key.endswith('_s')}" for name, key in shown.items()]
        if figures.get("collect_busy") is not None:
            parts.append(f"({figures['collect_busy']:.2f} while collecting)")
        self.say(f"iteration {figures['iteration']:>3}  " + "  ".join(parts))
        self._output.check()

    def evaluation(self, figures: Figures) -> None:
        """Prints the line of a measured checkpoint. Raises BrokenPipeError if nobody reads the output."""
        rate, text = figures["success_rate"], f"checkpoint {figures['checkpoint']}: "
        if rate is not None:
            text += f"success {rate:.2f} ({figures['success_low']:.2f} to {figures['success_high']:.2f}), "
        self.say(f"{text}reward {figures['reward_mean']:.2f} over {figures['episodes']} episodes")
        self._output.check()

    def summary(self, lines: Sequence[Figures]) -> None:
        """Prints what all iterations came to, unless this process only measures: episodes, learning, and its time."""
        if not lines or self.iterations is None:
            return
        count = "1 iteration" if len(lines) == 1 else f"{len(lines)} iterations"
        parts = [count, f"{sum(line['episodes'] for line in lines)} episodes"]
        for name, key in (("success", "success_rate"), ("reward", "reward_mean")):
            known = [line[key] for line in lines if line.get(key) is not None]
            parts += [f"{name} {known[0]:.2f} → {known[-1]:.2f}"] if known else []
        made = self.finished - self._first
        if made:
            parts.append(
                f"{'' if made == len(lines) else f'{made} of them now, '}in {duration(self.ago_s(self.began_at))}"
            )
        self.say(", ".join(parts), "bold")

    def say(self, text: str, style: str = "") -> None:
        self._output.line(text, style)

    def look(self, everything: bool = False) -> None:
        """Prints how often messages came again, if that is due; the output calls it now and then."""
        for text in self._repeats.due(everything):
            self.say(text, "yellow")

    def close(self) -> None:
        """Prints what is still to be told."""
        self.look(everything=True)

    def ago_s(self, at: float) -> float:
        """Returns how many seconds ago that was."""
        return self._clock() - at

    @property
    def success_rate(self) -> float | None:
        """The rate of the collection under way; None while nobody has told, or while it means nothing."""
        known = self._verdicts.total()
        means_something = self.tells_success or all(self._verdicts[each] for each in (True, False))
        return self._verdicts[True] / known if known and means_something else None

    def left_s(self) -> float | None:
        """Returns the seconds until the last iteration ends, by the median of the last ones; None if unknown.

        So it is in an iteration that takes longer than usual, while the first one learns, and after the last one.
        """
        left = 0 if self.iterations is None else self.iterations - self.finished
        if left <= 0 or self._iteration_at is None:
            return None
        passed_s = self._clock() - self._iteration_at
        each_s = statistics.median(self._took_s) if self._took_s else _extrapolated(self.status.round, passed_s)
        if each_s is None or passed_s >= each_s or each_s * left - passed_s < 1.0:
            return None
        return each_s * left - passed_s

    def sentence(self) -> str:
        """Returns the state in one line, for a file."""
        made = f"{self.finished} of {self.iterations} iterations finished" if self.iterations else ""
        return "; ".join([f"{self.status.now}, for {duration(self.ago_s(self.status.since_now))}", *self.remarks(made)])

    def counted(self) -> tuple[int, int] | None:
        """Returns how much of what goes on is done, and of how much: episodes, while they are collected."""
        round = self.status.round
        return self.status.part if round is None else (round.landed, round.wanted)

    def heading(self) -> str:
        """Returns what is done now, without counts, and in which iteration of how many."""
        status = self.status
        made = f"{self.finished} of {self.iterations} iterations" if self.iterations else ""
        doing = [status.doing or "", "" if status.round is None else status.round.name]
        return one_line("; ".join(part for part in (made, *doing) if part))

    def remarks(self, made: str = "") -> list[str]:
        """Returns what else there is to say: the user's code, success, who works, and how long it will take."""
        left_s, rate = self.left_s(), self.success_rate if self.status.round else None
        parts = [
            one_line(at_work() if self.ago_s(self.status.since_now) >= _PATIENCE_S else ""),
            f"success {rate:.2f}" if rate is not None else "",
            self._workers(),
            made,
            f"about {duration(left_s)} left" if left_s is not None else "",
        ]
        return [part for part in parts if part]

    def _workers(self) -> str:
        """Returns how many workers run episodes, and what the others do; empty without workers."""
        workers, collects = list(self.status.workers.values()), self.status.round is not None
        lost = sum(worker.lost for worker in workers)
        at_work = sum(collects and worker.at_work > 0 and not worker.lost for worker in workers)
        others = {"idle": len(workers) - lost - at_work, "lost": lost}
        told = "".join(f", {count} {word}" for word, count in others.items() if count)
        return f"{at_work} of {len(workers)} workers run episodes{told}" if workers else ""

    def _enter(self, round: Round) -> None:
        """Counts anew in a new collection; episodes that it took over count in it."""
        current = round if self.status.round is None else self.status.round.round
        if current != self._round:
            self._round = current
            self._verdicts.clear()


@dataclass
class _Repeated:
    reason: str
    told_at: float
    times: int = 0


class Repeats:
    """Messages that repeat themselves, up to numbers and the worker's name: the first is printed, others are counted.

    Safe to use from any thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, _Repeated] = {}
        self._lock = threading.Lock()

    def is_new(self, kind: str, content: dict[str, Json]) -> bool:
        """Returns whether nothing like it was told before; counts it if there was."""
        worker = str(content.get("worker", ""))
        reason = str(next((content[name] for name in _REASONS if name in content), ""))[:_COMPARED]
        plain = re.sub("[0-9a-f]*[0-9][0-9a-f]*", "#", reason.replace(worker, "*") if worker else reason)
        key = f"{kind} {content.get('state', '')} {plain}"
        with self._lock:
            if len(self._told) >= _MOST_REASONS and key not in self._told:
                key, reason = "", "other reasons, which events.jsonl has"
            is_new = key not in self._told
            if is_new:
                self._told[key] = _Repeated(": ".join(filter(None, (kind.replace("_", " "), reason))), self._clock())
            if not is_new or not key:
                self._told[key].times += 1
            return is_new and bool(key)

    def due(self, everything: bool = False) -> Iterator[str]:
        """Yields a line for each reason that came again, at most every 30 s."""
        now = self._clock()
        with self._lock:
            found = [one for one in self._told.values() if one.times and (everything or now - one.told_at >= _EVERY_S)]
            lines = [f"{one.times} more like this: {one.reason}" for one in found]
            for one in found:
                one.told_at, one.times = now, 0
        yield from lines


def duration(seconds: float) -> str:
    """Returns seconds as ``8 s``, ``2:05 min`` or ``3:07 h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"


def _extrapolated(round: RoundStatus | None, passed_s: float) -> float | None:
    if round is None or round.landed < max(1.0, _EARLIEST_GUESS * round.wanted):
        return None
    return passed_s * round.wanted / round.landed


_INEXACT = 1e-3
"""Difference of an answer's log-probability, in nats, from which on it is told."""


def message(kind: str, content: dict[str, Json]) -> str | None:
    """Returns what people are told of an event; None if it is not for them."""
    worker = f"worker {content.get('worker')}"
    match kind:
        case "run_copied":
            return (
                f"this run folder is a copy of {content['copy_of']} and goes on as a run of its own, "
                f"{content['run_id']}; what workers and loggers have of the original stays there"
            )
        case "judge_away":
            return f"the judge is unavailable: {content['reason']}; retry in {content['again_in_s']} s"
        case "engine_away":
            return f"{content['server']} is away: {content['reason']}; asked again for {content['gives_up_in_s']:g} s"
        case "engine_checked" if float(content["largest"]) > _INEXACT:
            off = f"{content['largest']:.2g} in {content['answers']} answers, {content['mean']:.2g} per token"
            return f"the engine's log-probabilities differ from agent.model's by up to {off}"
        case "worker_lost":
            remedy = f" -> {content['remedy']}" if content["remedy"] else ""
            return f"{worker} lost: {content['reason']}{remedy}"
        case "worker_queued":
            return f"{worker}: {content['doing']}, for {duration(content['seconds'])}"
        case "slot" if content["state"] == "long":
            return f"{worker}, slot {content['slot']}: {content['reason']}"
        case "slot" if content["state"] == "closed":
            return f"{worker}, slot {content['slot']} is out of service: {content['reason']}"
        case "starts_differ":
            return f"task {content['task']}: {content['reason']}"
        case "answers_unread" | "mismatch":
            return _about_policy(content)
        case "bsize":
            return f"{worker}: bsize: auto chose {content['slots']}: {content['reason']}"
        case "installing":
            return f"{worker}: checking or installing digirl_dist in {content['run_path']}"
        case "equal_faults":
            return f"{content['reason']}"
        case "logger_failed":
            return f"logger {content['logger']}: {content['reason']}; the run goes on"
        case "episode_set_aside" | "worker_suspected":
            what = "1 episode breaks" if kind == "episode_set_aside" else f"{content['episodes']} episodes break"
            return f"{worker}: {what} the update, which is made without: {content['reason']}"
        case "relay_failed":
            return f"{worker} gets its policy from the host, not from {content['source']}: {content['reason']}"
        case "roster_refused" | "policy_lost" | "disk_full":
            return f"{kind.replace('_', ' ')}: {content['reason']}"
        case "worker_added" | "worker_left":
            return f"{worker} was added" if kind == "worker_added" else f"{worker} has left"
        case _:
            return None


def _about_policy(content: dict[str, Json]) -> str:
    if "mismatch" in content:
        off = f"{content['mismatch']:.2g} nats per token off those that the update computes with the same weights"
        return f"the log-probabilities of what acts are {off} -> compare its model, dtype and versions"
    remedy = "compare agent.coordinates and agent.max_new_tokens with what the model writes"
    return f"{content['answers']} of its answers were no action, such as: {content['such_as']} -> {remedy}"


_HARMLESS = ("bsize", "installing", "worker_added", "worker_left", "worker_queued")
_SHOWN = {
    "success": "success_rate",
    "reward": "reward_mean",
    "collect": "collect_s",
    "update": "update_s",
    "overhead": "overhead_s",
    "emulators busy": "emulator_busy",
}
