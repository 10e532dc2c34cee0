"""The seam between a campaign and what it fuzzes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fuzz.mutation import mutated


class Target(ABC):
    """One kind of input."""

    samples: Sequence[bytes]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def case(self, random: Random) -> bytes:
        """Returns the input of a case, which follows from the generator alone."""
        return mutated(random, self.samples)

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Reads the input as the package does. Raises an error of ours for what is none."""
