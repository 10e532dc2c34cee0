"""A simulated machine, which outlives hosts: its program with the folder, and its link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulate.link import Link
from simulate.program import SimulatedProgram
from simulate.world import World


@dataclass(frozen=True)
class MachineSpec:
    """Fulfils ``Spec``."""

    name: str
    slots: int
    package: str = ""


@dataclass
class Machine:
    """``connect_s``: from the first packet to a program that can be greeted."""

    world: World
    spec: MachineSpec
    program: SimulatedProgram
    link: Link
    connect_s: float = 0.02
    accounted_at: float = 0.0
    """When the newest account of its slots' seconds arrived."""
    accounted_to: float = 0.0
    """When that account was made."""
    left_out_s: float = 0.0
    """Seconds of episodes under way that it left out."""
    strikes: dict[tuple[str, int], tuple[bool, Callable[[], object]]] = field(default_factory=dict)
    """What strikes when the n-th message of a kind arrives, on either side: just before it (True), or just after."""
    _arrived: Counter[str] = field(default_factory=Counter)

    def arrives(self, kind: str, handle: Callable[[], object]) -> None:
        """Handles a message, or a fault first."""
        self._arrived[kind] += 1
        before, strike = self.strikes.pop((kind, self._arrived[kind]), (False, None))
        if before and strike is not None:
            strike()
        handle()
        if not before and strike is not None:
            strike()
