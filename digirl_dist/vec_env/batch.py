"""Observations of several environments, of which there may be none."""

from __future__ import annotations

from typing import Any


class Batch(list[Any]):
    """A list in which ``in`` compares by identity, so that ``None in observations`` works with arrays too."""

    def __contains__(self, wanted: object) -> bool:
        return any(entry is wanted for entry in self)
