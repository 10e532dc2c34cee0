"""Observations of several environments, some of which may be None."""

from __future__ import annotations

from typing import Any


class Batch(list[Any]):
    """A list in which ``in`` compares by identity, so that ``None in observations`` works with arrays too."""

    def __contains__(self, wanted: object) -> bool:
        return any(entry is wanted for entry in self)
