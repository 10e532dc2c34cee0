"""An algorithm of the user's: ``algorithm.entry_point=my_file:MyAlgorithm``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext
from digirl_dist.user_code.entry_point import construct, load_callable, load_entry_point

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory

_KEY = "algorithm.entry_point"
_METHODS = ("update", "state_dict", "load_state_dict")


@dataclass
class OwnAlgorithm(AlgorithmPlugin):
    """A class that fulfils ``Algorithm``, called with the agent, ``peers``, ``seed`` and ``kwargs``.

    Where it has a class attribute ``group_size``, so many episodes in a row have one task and one seed.
    """

    entry_point: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def episodes_per_start(self) -> int:
        """Raises SettingsError for an entry point that cannot be found."""
        return int(getattr(load_entry_point(self.entry_point, _KEY), "group_size", 1))

    def build(self, context: LearningContext) -> AlgorithmFactory:
        """The class travels inside, so ranks need not find the file."""
        named = {"seed": context.seed, **self.kwargs}
        kind = load_callable(self.entry_point, _KEY, [None], {"peers": None, **named})
        return lambda agent, peers: construct(kind, _METHODS, agent, peers=peers, **named)
