"""``metrics.jsonl``: one line of figures per iteration, each iteration once."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from digirl_dist.collection import CollectionResult
from digirl_dist.emulator.touch_actions import UNREAD
from digirl_dist.errors import RunFolderError, TrainingError
from digirl_dist.rollout.slot import ACTIVITIES
from digirl_dist.storage import atomic_files, json_lines, strict_json
from digirl_dist.storage.disk_full import FailFast, WritePolicy
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trainer import Update
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

Figures = dict[str, Json]


_Z95 = 1.959963984540054
"""The 0.975 quantile of the standard normal distribution."""
_IN_EPISODES = ("reset", "step", "policy")


class _Head(msgspec.Struct):
    """The part of a line that says which it is."""

    iteration: int


_HEADS = msgspec.json.Decoder(_Head)
_LINES = msgspec.json.Decoder(dict[str, Any])
_MOST_LINES, _MOST_BYTES, _MOST_MEMORY = 500_000, 1 << 30, 1 << 30
"""Of the file, which a stranger may have made, and of its figures in memory: 64 workers take a week for those."""


class Metrics:
    """The metrics file of a run folder. ``write_policy`` applies while the disk is full."""

    def __init__(self, path: Path, write_policy: WritePolicy | None = None) -> None:
        self.path = path
        self._write_policy = write_policy or FailFast()
        self._texts = _whole_lines(path) if path.exists() else []
        self.iterations = [_iteration(text, f"line {place} of {path}") for place, text in enumerate(self._texts, 1)]

    @property
    def lines(self) -> list[Figures]:
        """All figures, decoded anew: of a long run that takes a while."""
        return [_LINES.decode(text) for text in self._texts]

    def keep_until(self, iteration: int, of: Sequence[int] = ()) -> None:
        """Drops the lines of iterations that a crash undid, and an incomplete line; ``of`` counts in their place."""
        self._write_policy.wait_for(str(self.path), lambda: json_lines.opened_to_append(self.path).close())
        kept = [place for place, each in enumerate(of or self.iterations) if each < iteration]
        if len(kept) == len(self._texts):
            return
        self._texts, self.iterations = [self._texts[at] for at in kept], [self.iterations[at] for at in kept]
        text = "".join(strict_json.dumps(line) + "\n" for line in self.lines)
        self._write_policy.wait_for(str(self.path), lambda: atomic_files.write_text(self.path, text))

    def make_up_for(self, until: int, store: Store, outcomes: Outcomes) -> None:
        """Drops the lines from iteration ``until`` on, and adds those before it that a crash lost, without times."""
        self.keep_until(until)
        for iteration in sorted(set(range(until)) - set(self.iterations)):
            episodes = store.read(iteration) if store.has(Round(iteration)) else ()
            self.append(outcomes.checked(results(iteration, episodes), episodes))

    def append(self, figures: Figures) -> None:
        text = strict_json.dumps(figures).encode()
        self._texts.append(text)
        self.iterations.append(figures["iteration"])
        self._write_policy.wait_for(str(self.path), lambda: json_lines.append(self.path, text + b"\n", flushed=True))


def lines_of(path: Path) -> list[Figures]:
    """Returns the figures of each iteration, in order; of one that was repeated after a crash, the later line.

    Raises RunFolderError, also for more of them than memory is meant for.
    """
    texts = _whole_lines(path) if path.exists() else []
    if sum(map(json_lines.cost, texts)) > _MOST_MEMORY:
        raise RunFolderError(f"{path} has figures for more than {_MOST_MEMORY:,} bytes: read them line by line")
    told = (line for line in map(json_lines.parsed, texts) if isinstance(line, dict))
    lines = {line["iteration"]: line for line in told if type(line.get("iteration")) is int}
    return [lines[iteration] for iteration in sorted(lines)]


def together(own: Mapping[str, Json], learned: Mapping[str, float]) -> Figures:
    """Returns the run's ``own`` figures and those of its algorithm. Raises TrainingError for a name that both have."""
    if taken := sorted(own.keys() & learned.keys()):
        raise TrainingError(f"the algorithm's figure {taken[0]!r} has the name of one of the run's own: rename it")
    return {**own, **learned}


def results(iteration: int, trajectories: Sequence[Trajectory]) -> Figures:
    """Returns the figures of an iteration's episodes. Rewards are undiscounted returns."""
    rewards = [trajectory.reward for trajectory in trajectories]
    return {
        "iteration": iteration,
        "time": round(time.time(), 3),
        "policy_version": max((trajectory.ticket.policy_version for trajectory in trajectories), default=None),
        "episodes": len(trajectories),
        "success_rate": _mean([float(trajectory.success) for trajectory in trajectories]),
        "reward_mean": _mean(rewards),
        "reward_max": max(rewards, default=None),
        "steps_mean": _mean([float(len(trajectory.steps)) for trajectory in trajectories]),
        "entropy": _entropy(trajectories),
        "unread_answers": len(unread(trajectories)),
        "success_by_task": _success_by_task(trajectories),
        **late(iteration, trajectories),
    }


def unread(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns the reasons why no action could be read in answers of models that write."""
    actions = [step.action for trajectory in trajectories for step in trajectory.steps]
    return [str(action[UNREAD]) for action in actions if isinstance(action, dict) and UNREAD in action]


class Outcomes:
    """Knows whether success means anything: if ``told`` of it, or once there were both successes and failures.

    ``metrics`` has the figures so far, of a run that is continued.
    """

    def __init__(self, told: bool, metrics: Metrics | None = None) -> None:
        self.mean_something = told or (
            metrics is not None and any(line.get("success_rate") is not None for line in metrics.lines)
        )
        self._seen: set[bool] = set()

    def checked(self, figures: Figures, trajectories: Sequence[Trajectory]) -> Figures:
        """Returns the figures of these episodes; success is null where it means nothing."""
        self._seen.update(trajectory.success for trajectory in trajectories)
        self.mean_something = self.mean_something or len(self._seen) == 2
        return figures if self.mean_something else {**figures, "success_rate": None, "success_by_task": {}}


def late(iteration: int, trajectories: Sequence[Trajectory]) -> Figures:
    """Returns how many updates the policies lagged behind."""
    staleness = [float(iteration - trajectory.ticket.policy_version) for trajectory in trajectories]
    return {"staleness_mean": _mean(staleness), "staleness_max": max(staleness, default=None)}


def measured(iteration: int, trajectories: Sequence[Trajectory]) -> Figures:
    """Returns the figures of a measurement's episodes: all but ``late``, as nothing learns from them."""
    found, of_learning = results(iteration, trajectories), late(iteration, ())
    return {name: figure for name, figure in found.items() if name not in of_learning}


def confidence(trajectories: Sequence[Trajectory]) -> Figures:
    """Returns the 95 % confidence bounds of the success rate (Wilson's score interval)."""
    low, high = wilson(sum(trajectory.success for trajectory in trajectories), len(trajectories))
    return {"success_low": round(low, 4), "success_high": round(high, 4)}


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Returns the lower and upper bound of a success probability at 95 %; (0, 1) without trials.

    The score interval: E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927), 209-212. Unlike the normal interval it remains valid near 0 and 1.
    """
    if trials == 0:
        return 0.0, 1.0
    share, spread = successes / trials, _Z95 * _Z95 / trials
    centre = (share + spread / 2) / (1 + spread)
    reach = _Z95 * math.sqrt((share * (1 - share) + spread / 4) / trials) / (1 + spread)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def collection(result: CollectionResult, evaluations: Sequence[CollectionResult] = ()) -> Figures:
    """Returns the figures of collecting: seconds, bytes, losses and retries.

    ``evaluations`` are those since the iteration before: emulators are busy or idle in them, too.
    """
    since = [each.slot_seconds for one in (*evaluations, result) for each in one.worker_results]
    return {
        "collect_s": round(result.ended_at - result.started_at, 4),
        "push_s": round(max((worker_result.push_s for worker_result in result.worker_results), default=0.0), 4),
        "push_bytes": sum(worker_result.push_bytes for worker_result in result.worker_results),
        "pull_bytes": sum(worker_result.pull_bytes for worker_result in result.worker_results),
        "emulator_busy": _busy(_added(since)),
        "collect_busy": None if result.busy is None else round(result.busy, 4),
        "episodes_retried": sum(worker_result.retried for worker_result in result.worker_results),
        "workers_lost": sum(len(worker_result.losses) for worker_result in result.worker_results),
        "slot_seconds": _added([worker_result.slot_seconds for worker_result in result.worker_results]),
        "slot_seconds_by_worker": {
            worker_result.worker: _rounded(worker_result.slot_seconds) for worker_result in result.worker_results
        },
        "set_aside": len(result.set_aside),
        "episode_s_mean": _mean([*result.seconds.values()]),
        "episodes_by_worker": _episodes_by_worker(result),
        **result.judging,
    }


def names() -> list[str]:
    """Returns the figures of every iteration; what an algorithm tells of its update comes on top."""
    return [*results(0, ()), *collection(CollectionResult.empty(Round(0))), "update_s", "overhead_s", "iteration_s"]


def overhead_s(result: CollectionResult, before: Update | None, measured_s: float = 0.0) -> float | None:
    """Returns the seconds in which neither the emulators nor the update ran.

    They run from the end of the previous update to the first action in every slot, less the evaluation between, and
    from the end of the last episode until all are in the store. None for the first iteration of a process, which starts
    everything from cold.
    """
    if before is None or None in (result.acting_at, result.last_ended_at, result.stored_at):
        return None
    assert result.acting_at is not None and result.last_ended_at is not None and result.stored_at is not None
    begin = max(0.0, result.acting_at - before.learned_at - measured_s)  # episodes begun ahead cost nothing here
    return round(begin + result.stored_at - max(result.last_ended_at, before.learned_at), 4)


def _episodes_by_worker(result: CollectionResult) -> dict[str, int]:
    """Counts also those that landed before this process started, whose workers may have gone."""
    counts = Counter(trajectory.worker for trajectory in result.trajectories)
    return {name: counts[name] for name in sorted({each.worker for each in result.worker_results} | counts.keys())}


def _busy(slot_seconds: Mapping[str, float]) -> float | None:
    """Returns the share of all slot-seconds, updates and evaluations included, in episodes that count."""
    total = sum(slot_seconds.values())
    return round(sum(slot_seconds.get(name, 0.0) for name in _IN_EPISODES) / total, 4) if total > 0 else None


def _added(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return _rounded(total)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {activity: round(seconds[activity], 4) for activity in ACTIVITIES if activity in seconds}


def _entropy(trajectories: Sequence[Trajectory]) -> float | None:
    """Returns the mean of −log π(a|s) over the steps: an unbiased estimate of the entropy of the policies that acted.

    Of actions with a density, the differential entropy. None without log-probabilities.
    """
    known = [step.log_prob for trajectory in trajectories for step in trajectory.steps if math.isfinite(step.log_prob)]
    return -sum(known) / len(known) if known else None


def _success_by_task(trajectories: Sequence[Trajectory]) -> dict[str, list[int]]:
    """Returns successes and episodes of each task."""
    counts: dict[str, list[int]] = {}
    for trajectory in trajectories:
        count = counts.setdefault(trajectory.ticket.task.id, [0, 0])
        count[0] += trajectory.success
        count[1] += 1
    return counts


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _whole_lines(path: Path) -> list[bytes]:
    """Raises RunFolderError for what is no regular file, such as a named pipe, and for more than any run writes."""
    with json_lines.opened(path) as file:
        size = path.stat().st_size
        lines = file.read(size if size <= _MOST_BYTES else 0).split(b"\n", _MOST_LINES + 1)
    if len(lines) > _MOST_LINES or size > _MOST_BYTES:
        raise RunFolderError(f"{path} has more than {_MOST_LINES:,} lines or {_MOST_BYTES:,} bytes: move it away")
    return lines[:-1]


def _iteration(line: bytes, place: str) -> int:
    """Returns the iteration that a line is of, which costs less than its figures. Raises RunFolderError."""
    try:
        return _HEADS.decode(line).iteration
    except msgspec.MsgspecError as error:
        raise RunFolderError(
            f"{place} has no figures of an iteration; restore the file, or remove that line"
        ) from error
