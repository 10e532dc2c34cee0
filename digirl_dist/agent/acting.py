"""What acts and cannot learn: the rest of ``Agent`` for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from digirl_dist.errors import AgentError
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

if TYPE_CHECKING:
    import torch


class ActsAlone:
    """All of ``Agent`` but ``act``, for a policy without weights."""

    feature_size = 0

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """Raises AgentError."""
        raise AgentError(f"{type(self).__name__} acts, and cannot be trained")

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Raises AgentError."""
        raise AgentError(f"{type(self).__name__} acts, and cannot be trained")

    def train(self, mode: bool = True) -> None:
        """There is no other mode than acting."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises RuntimeError for weights: they are another agent's."""
        if state:
            raise RuntimeError(f"{type(self).__name__} has no weights")


def completed(kind: Any) -> Any:
    """Returns a class of the user's that has ``act`` alone together with the rest of ``Agent``."""
    return type(kind.__name__, (kind, ActsAlone), {"__module__": kind.__module__})
