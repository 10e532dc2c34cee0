"""The figures that a forecast starts from: stated, of the rehearsal's settings, or measured in a run folder."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.storage import json_lines
from digirl_dist.storage.run_folder import existing_run

if TYPE_CHECKING:
    from digirl_dist.emulator.plugins.rehearsal import RehearsalSettings

_LEAST_PUSH = 1 << 20
"""A smaller push ends in the buffers on the way and says nothing of the link."""


_USUAL_SPREAD = 0.4
_MOST = {"fail_rate": 1.0, "steps_spread": 10.0, "reset_spread": 10.0}
"""What these figures are below; all others are below 1e9."""
_SLOWEST_MB_S = 1e-6


@dataclass(frozen=True)
class Figures:
    """What machines and links are like. Times are means in seconds."""

    reset_s: float
    """A reset."""
    step_s: float
    """A step of the emulator."""
    steps: float
    """Steps of an episode."""
    steps_spread: float = _USUAL_SPREAD
    """Standard deviation of the logarithm of an episode's length."""
    reset_spread: float = 0.3
    """The same for a reset."""
    policy_s: float = 0.02
    """The wait for an action."""
    fail_rate: float = 0.0
    """The share of episodes that are lost with their emulator."""
    boot_s: float = 2.0
    """The start of an emulator."""
    update_s: float = 1.0
    """From the end of a collection to the next checkpoint."""
    push_mb: float = 1.0
    """What a checkpoint sends to one worker, in 10^6 bytes."""
    episode_mb: float = 0.1
    """An episode's file."""
    link_mb_s: float = 10.0
    """A worker's link, in 10^6 bytes per second."""
    host_mb_s: float = 100.0
    """The host's own link, which all workers share."""
    host_episode_s: float = 0.005
    """What an episode takes of the host's one collecting thread."""


def stated(words: Sequence[str], measured: Figures | None = None) -> Figures:
    """Returns ``measured`` with what is stated as ``step_s=0.5``. Raises SettingsError naming what is wrong."""
    known = [field.name for field in fields(Figures)]
    said: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise SettingsError(f"--figure {word}: there is no figure {name!r}; there are {', '.join(known)}")
        try:
            said[name] = float(value)
        except ValueError:
            said[name] = math.nan
        if not _fits(name, said[name]):
            raise SettingsError(
                f"--figure {word}: must be a number of at least 0 and below {_MOST.get(name, 1e9):g}, and of at least "
                f"{_SLOWEST_MB_S:g} for a link"
            )
    if measured is not None:
        return _timed(replace(measured, **said))
    if missing := [name for name in ("reset_s", "step_s", "steps") if name not in said]:
        raise SettingsError(
            f"nothing is known of {', '.join(missing)}: name a run that measured it, as --run runs/mine, or state it, "
            "as --figure reset_s=2 --figure step_s=1 --figure steps=10"
        )
    return _timed(Figures(**said))


def _fits(name: str, value: float) -> bool:
    return (_SLOWEST_MB_S if name.endswith("mb_s") else 0) <= value < _MOST.get(name, 1e9)


def _timed(figures: Figures) -> Figures:
    if not figures.reset_s + figures.steps * (figures.step_s + figures.policy_s):
        raise SettingsError("an episode takes no time by these figures: set reset_s, step_s or policy_s above 0")
    return figures


def of_rehearsal(settings: RehearsalSettings) -> Figures:
    """Returns what the settings of ``emulator=rehearsal`` say: the means of its log-normal times."""
    faults = min(1.0, settings.hang_rate + settings.crash_rate + settings.error_rate)
    step_s = settings.step_s * math.exp(settings.step_sigma**2 / 2)
    steps = settings.steps * math.exp(settings.steps_sigma**2 / 2)
    return Figures(
        reset_s=settings.reset_s * math.exp(settings.reset_sigma**2 / 2),
        step_s=step_s,
        steps=steps,
        steps_spread=math.hypot(settings.steps_sigma, settings.step_sigma / math.sqrt(steps)),
        reset_spread=settings.reset_sigma,
        fail_rate=1 - (1 - faults) ** steps,
        boot_s=settings.boot_s,
    )


def of_run(folder: Path) -> Figures:
    """Returns what a run measured, its first iteration left out. Raises RunFolderError if it measured nothing or its
    lines are damaged, and TrajectoryError for a damaged file."""
    root = existing_run(folder)
    try:
        found = _of_lines(root)
        if wrong := [each.name for each in fields(found) if not _fits(each.name, getattr(found, each.name))]:
            raise ValueError(f"{wrong[0]} is out of range")
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{root}/metrics.jsonl or events.jsonl is damaged ({type(error).__name__}: {str(error)[:100]}); restore it"
        ) from error
    return found


def _of_lines(folder: Path) -> Figures:
    measured = json_lines.read(folder / "metrics.jsonl")
    lines = [line for line in measured if line.get("slot_seconds") and line.get("episodes")]
    lines = lines[1:] or lines
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        for activity, each in line["slot_seconds"].items():
            seconds[activity] += each
    episodes = sum(line["episodes"] for line in lines)
    steps = sum(line["episodes"] * (line["steps_mean"] or 0.0) for line in lines)
    if not episodes or not steps or not seconds["step"]:
        raise RunFolderError(f"{folder} has no finished iteration that was collected; plan with a run that has one")
    retried = sum(line.get("episodes_retried") or 0 for line in lines)
    timed = [line for line in lines if line.get("iteration_s")]
    updates = [max(line.get("update_s") or 0.0, line["iteration_s"] - line["collect_s"]) for line in timed]
    pushes = _pushes(folder)
    figures = Figures(
        reset_s=seconds["reset"] / episodes,
        step_s=seconds["step"] / steps,
        steps=steps / episodes,
        steps_spread=_steps_spread(folder),
        policy_s=seconds["policy"] / steps,
        fail_rate=retried / (episodes + retried),
        update_s=max(0.0, mean(updates)) if updates else 1.0,
        episode_mb=sum(line.get("pull_bytes") or 0 for line in lines) / episodes / 1e6,
    )
    if not pushes:
        return figures
    rate = sum(size for size, _ in pushes) / sum(took_s for _, took_s in pushes)
    return replace(figures, push_mb=mean(size for size, _ in pushes) / 1e6, link_mb_s=rate / 1e6)


def _pushes(folder: Path) -> list[tuple[int, float]]:
    """Returns bytes and seconds of each push that was large enough to measure the link."""
    found = [line for line in json_lines.read(folder / "events.jsonl") if line.get("event") == "pushed"]
    return [(line["bytes"], line["seconds"]) for line in found if line["bytes"] >= _LEAST_PUSH and line["seconds"] > 0]


def _steps_spread(folder: Path) -> float:
    """Returns the spread of the newest iteration's lengths. Raises TrajectoryError for a damaged file."""
    from digirl_dist.storage import parquet

    paths = sorted((folder / "trajectories").glob("[0-9]*.parquet"))
    if not paths:
        return _USUAL_SPREAD
    with parquet.opened(paths[-1]) as file:
        rows = file.read(["episode_id"]).column("episode_id").to_pylist()
    return pstdev([math.log(count) for count in Counter(rows).values()]) if rows else _USUAL_SPREAD
