"""The algorithms that ``train_algorithm=NAME`` chooses: one file each, with its settings and how it is built.

Here are those without a name: the user's (``algorithm.entry_point=my_file:MyAlgorithm``), and none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from digirl_dist.errors import SettingsError, TrainingError
from digirl_dist.settings.algorithms import ExperienceSettings
from digirl_dist.settings.plugins import AlgorithmBlock
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.entry_point import construct, load_callable, load_entry_point, parameters_of

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory
    from digirl_dist.algorithm.hindsight import Experience
    from digirl_dist.algorithm.table import Learned

_KEY = "algorithm.entry_point"
_METHODS = ("update", "state_dict", "load_state_dict")


class LearnsFrom(Enum):
    """What an algorithm is given."""

    episodes = "episodes"
    """Whole episodes, fresh ones and those of a replay, whoever acted in them."""
    groups = "groups"
    """Fresh episodes, compared with those that start alike."""
    steps = "steps"
    """Every fresh step; on ranks with emulators also those of episodes that go on."""


@dataclass(frozen=True)
class LearningContext:
    """What of a run an algorithm may have to know."""

    seed: int
    iterations: int
    """Updates of the whole run."""
    max_steps: int | None
    """Longest episode, if that is known."""
    tasks: Sequence[Task] = ()
    """The task set."""
    experience: ExperienceSettings = field(default_factory=ExperienceSettings)
    tells_success: bool = True
    """Whether an episode's success is more than a return above 0."""


@dataclass
class AlgorithmPlugin(AlgorithmBlock, ABC):
    """Settings of an algorithm, which build it."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.episodes

    @property
    def episodes_per_start(self) -> int:
        """How many tickets in a row have one task and one seed."""
        return 1

    @abstractmethod
    def build(self, context: LearningContext) -> AlgorithmFactory:
        """What makes the algorithm for an agent. Raises SettingsError before anything is made."""


def experience_of(context: LearningContext) -> Experience:
    """Returns what the imitating algorithms learn from. Raises SettingsError for a function that cannot be found."""
    from digirl_dist.algorithm.hindsight import Experience, Hindsight

    settings, name = context.experience, context.experience.hindsight.achieved
    achieved = None if name is None else load_callable(name, "algorithm.hindsight.achieved", [None], {})
    hindsight = Hindsight(tuple(context.tasks), settings.hindsight.most, achieved)
    return Experience(hindsight, settings.erase_loops, settings.unsolved, context.tells_success)


@dataclass
class OwnAlgorithm(AlgorithmPlugin):
    """A class that fulfils ``Algorithm``, called with the agent, ``peers``, ``seed`` and ``kwargs``.

    One that takes ``experience`` gets an ``Experience``: the run's tasks, hindsight and ``erase_loops``. Where it has a
    class attribute ``group_size``, so many episodes in a row have one task and one seed.
    """

    entry_point: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def episodes_per_start(self) -> int:
        """Raises SettingsError for an entry point that cannot be found, and for a size that is none."""
        size = getattr(load_entry_point(self.entry_point, _KEY), "group_size", 1)
        if type(size) is not int or size < 1:
            raise SettingsError(f"{self.entry_point}: group_size={size!r} must be a whole number from 1")
        return size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        """The class travels inside, so ranks need not find the file."""
        named = {"seed": context.seed, **self.kwargs}
        if "experience" in parameters_of(load_entry_point(self.entry_point, _KEY)):
            named["experience"] = experience_of(context)
        kind = load_callable(self.entry_point, _KEY, [None], {"peers": None, **named})
        from digirl_dist.algorithm import Algorithm

        return lambda agent, peers: construct(kind, Algorithm, _METHODS, agent, peers=peers, **named)


class NoTraining:
    """Fulfils ``Algorithm`` where nothing is learned; it needs no parameters."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        """Raises TrainingError."""
        raise TrainingError("this agent cannot learn; measure it with task_mode=evaluate")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing was learned."""
