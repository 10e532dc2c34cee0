"""The states of agents and algorithms, which may be classes of the user's: what fails there names the class."""

from __future__ import annotations

from typing import Any

from digirl_dist.errors import DigirlDistError, StateError
from digirl_dist.user_code.blame import RAISED, blaming, described


def saved_state(part: Any) -> Any:
    """Returns what ``state_dict`` of an agent or algorithm returns. Raises StateError with the line that raised."""
    with blaming(f"{type(part).__name__}.state_dict", StateError):
        return part.state_dict()


def load_state(part: Any, state: Any) -> None:
    """Has an agent or algorithm load its state. Raises StateError if it cannot, for whatever reason."""
    try:
        part.load_state_dict(state)
    except (DigirlDistError, MemoryError):
        raise
    except RAISED as error:
        raise StateError(f"{type(part).__name__}.load_state_dict: {described(error)}") from error
