"""How a simulated machine is: its emulators, and what is wrong with its program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from digirl_dist.plan.forecast import Phase
from digirl_dist.tasks import Key, Ticket

Fate = Literal["ends", "fails", "hangs"]


@dataclass
class Behaviour:
    """A machine on which all goes well unless a field says otherwise."""

    slots: int = 4
    episode_s: float = 1.0
    boot_s: float = 0.0
    load_s: float = 0.0
    """How long the program takes to load a policy; it hears nothing meanwhile."""
    mishears: Callable[[Ticket], bool] = lambda ticket: False
    """Leases that the program drops without a word."""
    forgets: Callable[[Ticket], bool] = lambda ticket: False
    """Episodes that end without a word."""
    fate: Callable[[Ticket], Fate] = lambda ticket: "ends"
    """What becomes of an episode: an emulator may fail, or hang until its limit."""
    phases: Callable[[Ticket], Sequence[Phase]] | None = None
    """What an episode consists of, the reset first; None: ``episode_s`` of steps."""
    claims: list[Key] = field(default_factory=list)
    """Tickets that it says it holds, whatever it was leased."""

    def phases_of(self, ticket: Ticket) -> Sequence[Phase]:
        return [("reset", 0.0), ("step", self.episode_s)] if self.phases is None else self.phases(ticket)
