"""Which trajectories and steps are learned from, which only measure, and how much each task weighs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from digirl_dist.algorithm.advantages import ROUNDING, returns_to_go
from digirl_dist.algorithm.table import AVOIDED, IN_LOOPS, LOOP, NOT_GOOD, UNSOLVED, Row
from digirl_dist.emulator.touch_actions import without_remarks
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json


def best(scores: np.ndarray, share: float, above: float) -> list[int]:
    """Indices of the best ``share`` of ``scores`` (at least one) that lie strictly above ``above``.

    Whoever ties with the last of them, within rounding, is kept too: of 0/1 rewards with successes in more than
    ``share`` of all trajectories, all successes are.
    """
    if len(scores) == 0:
        return []
    last = np.sort(scores)[-max(1, round(share * len(scores)))]
    threshold = last - ROUNDING * abs(last)
    return [int(index) for index in np.flatnonzero((scores >= threshold) & (scores > above))]


def newest(places: Sequence[int], tasks: Sequence[str], steps: Sequence[int], most: int) -> list[int]:
    """Returns those of ``places`` that are among the last ``most`` of their task, or took one step as most of these.

    ``tasks`` and ``steps`` tell of every place which task it has and how many steps it took.

    Each policy imitates its own successes, and so becomes surer of what led there. Successes of all earlier policies
    together would keep it as unsure as these were on average. But where most of the last ones took one step, one step
    is no detour, and shows another screen.
    """
    of_task: dict[str, list[int]] = defaultdict(list)
    for place in places:
        of_task[tasks[place]].append(place)
    last = {task: own[-most:] for task, own in of_task.items()}
    usual = {task: np.median([steps[place] for place in own]) for task, own in last.items()}
    return [place for place in places if place >= last[tasks[place]][0] or steps[place] == 1 == usual[tasks[place]]]


def top_quantile(scores: np.ndarray, share: float) -> list[int]:
    """Indices of the finite ``scores`` [N] at or above their (1 − ``share``) quantile, which is interpolated linearly.

    The filter of DigiRL's released code (``filter_buffer`` in its off-policy training loop), with share 0.1.
    """
    usable = scores[np.isfinite(scores)]
    if len(usable) == 0:
        return []
    return [int(index) for index in np.flatnonzero((scores >= np.quantile(usable, 1 - share)) & np.isfinite(scores))]


def task_weights(tasks: Sequence[str]) -> list[float]:
    """1 / sqrt(how often the task occurs), so that tasks solved often do not drown those solved seldom."""
    counts = Counter(tasks)
    return [float(counts[task] ** -0.5) for task in tasks]


def judged(
    episode: Trajectory, outcome: str, reason: str, weight: float, discount: float, erase_loops: bool
) -> list[Row]:
    """Returns a row for each step of an episode that is imitated, each ``weight`` times what came after it heavy.

    Left out are steps after which nothing good came (the return to go is discounted) and, with ``erase_loops``, those
    that led nowhere: a tap beside every button before the right one is not worth imitating.
    """
    togo = returns_to_go([step.reward for step in episode.steps], discount)
    rows = []
    for place, (worth, leads_on) in enumerate(zip(togo, leading_on(episode, erase_loops), strict=True)):
        if worth <= 0:
            rows.append(Row(episode, place, NOT_GOOD, f"the return after it is {worth:.3g}"))
        elif not leads_on:
            rows.append(Row(episode, place, IN_LOOPS, LOOP))
        else:
            because = f"{reason}, with a return of {worth:.3g} after it"
            rows.append(Row(episode, place, outcome, because, weight * worth))
    return rows


def fatal(episodes: Sequence[Trajectory], kept: Sequence[Trajectory], weight: float) -> list[Row]:
    """Returns the steps that ended the newest failures among ``episodes``, to avoid, as many as ``kept`` of ``weight``.

    What came after an action depends on those that followed it, but not of the last one: it earned nothing and left
    nothing to earn, whatever the policy. Where there are more, up to four times as many share that weight, as
    what is avoided for a short time comes back. An action with which nine tenths of ``kept`` ended is not what was
    wrong: a policy that avoids the only button of a form no longer pushes it. Nor is one with a density, which is no
    probability to lower.
    """
    ends = Counter(str(without_remarks(one.steps[-1].action)) for one in kept)
    failed = [one for one in reversed(episodes) if one.steps and one.reward <= 0 and one.steps[-1].terminated]
    last = [(one, without_remarks(one.steps[-1].action)) for one in failed if weight]
    ended = [one for one, end in last if is_counted(end) and ends[str(end)] <= 0.9 * len(kept)][: 4 * len(kept)]
    reason = "it ended the episode without success, and is made less likely"
    return [Row(one, len(one.steps) - 1, AVOIDED, reason, -weight * min(1.0, len(kept) / len(ended))) for one in ended]


def is_counted(action: Json) -> bool:
    """Whether an action is one of finitely many: those of a Box are lists of numbers, and have a density."""
    return not isinstance(action, list) or all(type(part) is int for part in action)


def loops(episodes: Sequence[Trajectory], most: int, weight: float, erase_loops: bool) -> list[Row]:
    """Returns, with ``erase_loops``, up to ``most`` steps of failures that led back to where they had been, to avoid.

    What is imitated over and over makes a policy sure of itself, and nothing else would end its loops. The weight is
    small: another time such a step may lead on, so only what the policy is sure of shall lose by it.
    """
    found = [
        Row(one, place, AVOIDED, "its episode failed, and it led back to where that had been", -weight)
        for one in episodes
        for place, leads_on in enumerate(leading_on(one, erase_loops) if weight and one.reward <= 0 else ())
        if not leads_on and is_counted(one.steps[place].action)
    ]
    return _evenly(found, most)


def _evenly(rows: Sequence[Row], most: int) -> list[Row]:
    return [rows[place] for place in np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int).tolist()]


def unsolved_steps(replay: Sequence[Trajectory], share: float, rows: Sequence[Row]) -> list[Row]:
    """Returns what the oldest policy chose in tasks that are not solved yet, beside the ``rows`` to imitate.

    Whatever is imitated makes all else less likely, in every task. Those that are not solved need something else, so
    there the policy is held to what it chose before it learned. At most as many as ``rows``, evenly from all of those,
    and each ``share`` as heavy as these are on average.
    """
    return _evenly(unsolved(replay, share * mean_weight(rows)), len(rows)) if share else []


def mean_weight(rows: Sequence[Row]) -> float:
    """0 without rows."""
    return float(np.mean([row.weight for row in rows])) if rows else 0.0


def unsolved(replay: Sequence[Trajectory], weight: float) -> list[Row]:
    """Returns, with this weight, the steps of the run's oldest policy from which on nobody knows what to do.

    In a task that no episode there solved, as its emulator says, that is what follows an episode's last reward; in one
    that no episode earned anything in, all. Where returns differ and none is above 0, the better ones teach the task.
    """
    best_returns = _unsolved_tasks(replay)
    own = [episode for episode in replay if not episode.is_offline]  # other versions made the others
    oldest = min((episode.ticket.policy_version for episode in own), default=0)
    first = [one for one in own if one.ticket.policy_version == oldest and one.ticket.task.id in best_returns]
    reason = "its task is not solved yet: there the policy is held to what it chose before it learned"
    return [
        Row(one, place, UNSOLVED, reason, weight)
        for one in first
        for place in range(_open_end(one.steps, begun=best_returns[one.ticket.task.id] > 0), len(one.steps))
    ]


def _open_end(steps: Sequence[Step], begun: bool) -> int:
    """Returns the place after the last reward; without one the first, or the end if others have ``begun`` the task."""
    rewarded = [number for number, step in enumerate(steps, 1) if step.reward > 0]
    return max(rewarded, default=len(steps) if begun else 0)


def _unsolved_tasks(replay: Sequence[Trajectory]) -> dict[str, float]:
    """The best return in each task that no episode solved."""
    returns: dict[str, set[float]] = defaultdict(set)
    for episode in replay:
        returns[episode.ticket.task.id].add(episode.reward)
    for episode in replay:
        if episode.success:
            returns.pop(episode.ticket.task.id, None)
    return {task: max(own) for task, own in returns.items() if len(own) == 1 or max(own) > 0}


def held_out(episode: Trajectory, share: float) -> bool:
    """Whether an episode is among the ``share`` of all that train nothing and only measure.

    Follows from iteration and ticket, so an episode stays on its side without any memory, also after a resume.
    """
    return int(digest(f"{episode.ticket.iteration}/{episode.ticket.index}".encode())[:8], 16) < share * 2**32


def on_the_way(trajectory: Trajectory) -> list[bool]:
    """Of each step, whether it is left after erasing loops: whatever lies between two sights of one screen.

    So a tap beside the button is left out, and so is opening the wrong app together with going back. A reward is never
    part of a loop, so the way to it stays even where the screen then looks as before.
    """
    seen = [_screen(each) for each in trajectory.observations]
    forward, at = [False] * len(trajectory.steps), 0
    while at < len(forward):
        rewarded = next((k for k in range(at, len(forward)) if trajectory.steps[k].reward > 0), len(forward))
        last = {seen[k]: k for k in range(at, rewarded + 1)}
        while at <= rewarded:
            at = last[seen[at]]
            if at < len(forward):
                forward[at] = True
            at += 1
    return forward


def leading_on(trajectory: Trajectory, erase_loops: bool) -> list[bool]:
    """Of each step, whether it may be learned from: every one, or with ``erase_loops`` those on the way."""
    return on_the_way(trajectory) if erase_loops else [True] * len(trajectory.steps)


def _screen(seen: Observation) -> bytes | str:
    """What tells one situation from another. Texts count only where nothing else was seen: with some agents they tell
    of the actions before."""
    if seen.image is None and seen.vector is None:
        return seen.text
    return (seen.image or b"") + (b"" if seen.vector is None else b"/" + seen.vector.tobytes())


_LATELY = 16
"""Newest episodes of a task whose mean return is what it lately comes to."""

Start = tuple[str, int]
"""Task and seed, which all episodes of a group share."""

Members = list[Trajectory]
"""The episodes of a group."""


@dataclass(frozen=True)
class Waiting:
    """The starts of those tickets that had not run when an iteration began, and when it ended."""

    before: frozenset[Start]
    after: frozenset[Start]


def completed_groups(
    fresh: Sequence[Trajectory], replay: Sequence[Trajectory], size: int, waiting: Waiting | None = None
) -> list[Members]:
    """The groups of ``size`` episodes of one task and seed that this iteration completes.

    Where iterations close early, the longest episodes of a group come later than the others. Learning from a group
    without them would favour short episodes, so it waits for its last ones in ``replay``, which ends with ``fresh``.
    A group whose tickets are not ``waiting`` any more counts with the episodes that it has, if these are two: the
    others got lost. An offline episode that started alike is none of them.
    """
    groups: dict[Start, dict[Key, Trajectory]] = defaultdict(dict)
    for episode in replay:
        if not episode.is_offline:
            groups[start_of(episode)][episode.ticket.key] = episode
    ended = sorted(waiting.before - waiting.after) if waiting else []
    found = []
    for start in dict.fromkeys([*map(start_of, fresh), *ended]):
        members = list(groups[start].values())
        if waiting:  # of a plan, whose groups begin in one iteration each
            members = [one for one in members if one.ticket.iteration == members[-1].ticket.iteration]
        is_over = waiting is not None and start not in waiting.after
        if len(members) >= (min(2, size) if is_over else size):
            found.append(members[-size:])
    return found


def expected_returns(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """The mean return of the newest ``_LATELY`` episodes of each task; ``episodes`` are in the order of time."""
    found: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        found[episode.ticket.task.id].append(episode.reward)
    return {task: float(np.mean(returns[-_LATELY:])) for task, returns in found.items()}


def surpluses(returns: Sequence[float], tasks: Sequence[str], expected: Mapping[str, float]) -> list[float]:
    """(R − V)₊ of each episode, 0 within rounding; a task without any of its own has V = 0."""
    found = [one - expected.get(task, 0.0) for one, task in zip(returns, tasks, strict=True)]
    return [more if more > ROUNDING * abs(one) else 0.0 for more, one in zip(found, returns, strict=True)]


def start_of(episode: Trajectory) -> Start:
    return episode.ticket.task.id, episode.ticket.seed
