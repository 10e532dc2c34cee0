"""Hindsight: episodes that missed their own goal and met another one, relabelled with that other instruction.

Hindsight experience replay (Andrychowicz et al. 2017, arXiv 1707.01495) for instructions. What an episode met is stored
with its steps (``Step.achieved``), so relabelled episodes follow from the store and are kept nowhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from digirl_dist.agent.prompts import quoted
from digirl_dist.algorithm.optimizer import totals
from digirl_dist.algorithm.selection import on_the_way
from digirl_dist.emulator.remembered import recalled
from digirl_dist.emulator.touch_actions import SAID, without_remarks
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Goal, Observation, Step, Trajectory

Achieved = Callable[[Trajectory], Iterable[tuple[int, str]]]
"""Which instructions an episode fulfilled, each with the number of steps after which it had: the user's."""


@dataclass(frozen=True)
class Hindsight:
    """Relabels episodes with goals of ``tasks`` that they met, each at most ``most`` times.

    ``achieved`` takes the place of what the emulator said.
    """

    tasks: Sequence[Task]
    most: int
    achieved: Achieved | None = None

    def relabelled(self, episode: Trajectory) -> list[Trajectory]:
        """Returns one success for each chosen goal: the way to it, without loops, under its instruction.

        Left out are the episode's own task, goals that the last step of the way did not bring about, and ways on which
        text was typed that the instruction does not name. Raises TrainingError for a function of the user's that
        answers something else than pairs.
        """
        if self.most == 0:
            return []
        ticket, own = episode.ticket, episode.ticket.task.id
        met = {task.id: (steps, task) for steps, task in reversed(list(self._met(episode))) if task.id != own}
        chosen = sorted(met.values(), key=lambda one: digest(f"{ticket.iteration}/{ticket.index}/{one[1].id}".encode()))
        ways = (_way(episode, steps, task) for steps, task in chosen)
        return [way for way in ways if way is not None][: self.most]

    def added(self, episodes: Sequence[Trajectory], peers: Peers = ALONE) -> tuple[list[Trajectory], dict[str, float]]:
        """Returns the episodes, each followed by what it was relabelled to, and the share of the latter as a figure.

        The share is that of all ranks; every rank must call it.
        """
        found = [[episode, *self.relabelled(episode)] for episode in episodes]
        together = [each for part in found for each in part]
        count = totals({"tried": len(episodes), "together": len(together)}, peers)
        return together, {"relabelled_share": 1 - count["tried"] / count["together"] if count["together"] else 0.0}

    def _met(self, episode: Trajectory) -> Iterable[tuple[int, Task]]:
        if self.achieved is not None:
            yield from _named(self.achieved, episode, self.tasks)
            return
        for number, step in enumerate(episode.steps, 1):
            for goal in step.achieved:
                yield from ((number, task) for task in self._by_goal.get(_key(goal), _in_words(goal)))

    @cached_property
    def _by_goal(self) -> Mapping[str, list[Task]]:
        found: dict[str, list[Task]] = {}
        for task in self.tasks:
            found.setdefault(_key(task.params), []).append(task)
        return found


def _in_words(goal: Goal) -> list[Task]:
    """The task of a goal that the emulator tells as an instruction."""
    match goal:
        case {"instruction": str(instruction)}:
            return [Task(instruction, instruction)]
    return []


NO_HINDSIGHT = Hindsight((), 0)


@dataclass(frozen=True)
class Experience:
    """What all imitating algorithms have in common: see ``settings.algorithms.ExperienceSettings``."""

    hindsight: Hindsight = NO_HINDSIGHT
    erase_loops: bool = True
    unsolved: float = 0.3
    tells_success: bool = True
    """Whether an episode's success is more than a return above 0."""


USUAL = Experience()


def _key(goal: Goal) -> str:
    return json.dumps(goal, sort_keys=True)


def _named(achieved: Achieved, episode: Trajectory, tasks: Sequence[Task]) -> Iterable[tuple[int, Task]]:
    known, name = {task.instruction: task for task in tasks}, getattr(achieved, "__name__", achieved)
    answers = achieved(episode)
    if not isinstance(answers, Iterable):
        raise TrainingError(f"{name} answered {answers!r:.100}, not a list of pairs; of what achieved nothing, []")
    for answer in answers:
        match answer:
            case (int(steps), str(instruction)) if 0 < steps <= len(episode.steps):
                yield steps, known.get(instruction) or Task(instruction, instruction)
            case _:
                raise TrainingError(f"{name} answered {answer!r}, not a number of steps taken and an instruction")


def _way(episode: Trajectory, length: int, task: Task) -> Trajectory | None:
    """Returns the first ``length`` steps without loops under the task's instruction, None where they cannot be."""
    seen = episode.observations
    said = episode.ticket.task.instruction or _shown(seen)
    earned = _by_parts(episode.steps[:length], task)
    steps = [replace(step, reward=part) for step, part in zip(episode.steps, earned, strict=False)]
    prefix = replace(episode, steps=steps, final_observation=seen[length])
    keeps = on_the_way(prefix)
    steps = [step for step, keep in zip(prefix.steps, keeps, strict=True) if keep]
    if not said or not task.instruction or not keeps[-1] or not all(_can_be_said(step, said, task) for step in steps):
        return None
    steps = [replace(step, observation=_told(step.observation, said, task)) for step in steps]
    steps[-1] = replace(steps[-1], reward=1.0 - sum(earned[:-1]), terminated=True, truncated=False)
    ticket, final = replace(episode.ticket, task=task), _told(seen[length], said, task)
    return replace(prefix, ticket=ticket, steps=steps, final_observation=final, success=True)


def _by_parts(steps: Sequence[Step], task: Task) -> list[float]:
    """Returns what each step earns of a goal in ``parts``: an equal share where one of them is first met.

    Going back to where the first part began is then no loop: the second one begins there, too.
    """
    parts = task.params.get("parts")
    left = list(parts) if isinstance(parts, list) else []
    share, earned = 1 / max(1, len(left)), []
    for step in steps:
        met = [part for part in left if part in step.achieved]
        left = [part for part in left if part not in met]
        earned.append(share * len(met))
    return earned


def _shown(seen: Sequence[Observation]) -> str:
    """Returns the instruction that only the observations tell; nothing if they tell several."""
    told = {recalled(each.text).instruction for each in seen}
    return told.pop() if len(told) == 1 else ""


def _can_be_said(step: Step, said: str, task: Task) -> bool:
    """Whether what was done under the instruction ``said`` could have been under that of ``task``.

    Text that was typed must be known from both. Agents that copy quoted parts may know the first few only, so one must
    not stand later than before. An answer that reasons with words of the one that the other lacks is one to no other.
    """
    action = step.action if isinstance(step.action, dict) else {}
    text, answer = action.get("text"), str(action.get(SAID, ""))
    if said in answer or _words(answer) & (_words(said) - _words(f"{task.instruction} {without_remarks(action)}")):
        return False
    if text is None:
        return True
    before, after = quoted(said), quoted(task.instruction)
    return text in (after[: before.index(text) + 1] if text in before else task.instruction)


def _words(text: str) -> set[str]:
    """Those that tell something: of four letters or more."""
    return set(re.findall(r"\w{4,}", text.casefold()))


def _told(seen: Observation, said: str, task: Task) -> Observation:
    return replace(seen, text=seen.text.replace(said, task.instruction, 1))
