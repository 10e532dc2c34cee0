"""Which trajectories and steps are learned from, which only measure, and how much each task weighs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from digirl_dist.algorithm.advantages import ROUNDING
from digirl_dist.storage.digest import digest
from digirl_dist.trajectory import Observation, Step, Trajectory


def best(scores: np.ndarray, share: float, above: float) -> list[int]:
    """Indices of the best ``share`` of ``scores`` (at least one) that lie strictly above ``above``.

    Whoever ties with the last of them, within rounding, is kept too: of 0/1 rewards with successes in more than
    ``share`` of all trajectories, all successes are.
    """
    if len(scores) == 0:
        return []
    rank = max(1, round(share * len(scores)))
    last = np.sort(scores)[-rank]
    threshold = last - ROUNDING * abs(last)
    return [int(index) for index in np.flatnonzero((scores >= threshold) & (scores > above))]


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


def unsolved(replay: Sequence[Trajectory]) -> list[Step]:
    """Returns the steps of the oldest policy in ``replay`` from which on nobody knows what to do.

    In a task that no episode there solved, as its emulator says, that is what follows an episode's last reward; in one
    that no episode earned anything in, all. Where returns differ and none is above 0, the better ones teach the task.
    """
    best_returns = _unsolved_tasks(replay)
    oldest = min((episode.ticket.policy_version for episode in replay), default=0)
    first = [one for one in replay if one.ticket.policy_version == oldest and one.ticket.task.id in best_returns]
    return [step for one in first for step in _open_end(one.steps, begun=best_returns[one.ticket.task.id] > 0)]


def _open_end(steps: Sequence[Step], begun: bool) -> Sequence[Step]:
    """Returns the steps after the last reward; without one all steps, or none if others have ``begun`` the task."""
    rewarded = [number for number, step in enumerate(steps, 1) if step.reward > 0]
    return steps[max(rewarded, default=len(steps) if begun else 0) :]


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
    ticket = episode.ticket
    return int(digest(f"{ticket.iteration}/{ticket.index}".encode())[:8], 16) < share * 2**32


def on_the_way(trajectory: Trajectory) -> list[bool]:
    """Of each step, whether it is left after erasing loops: whatever lies between two sights of one screen.

    So a tap beside the button is left out, and so is opening the wrong app together with going back. A reward is never
    part of a loop, so the way to it stays even where the screen then looks as before.
    """
    seen = [_screen(each) for each in (*(step.observation for step in trajectory.steps), trajectory.final_observation)]
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
