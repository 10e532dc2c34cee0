"""The table of an update: a row for each step that it considered, with what it made of the step and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from digirl_dist.trajectory import Observation, Trajectory, seen_at
from digirl_dist.types import Json

KEPT = "kept_steps"
IMITATED = "imitated_steps"
AVOIDED = "avoided_steps"
UNSOLVED = "unsolved_steps"
NOT_CHOSEN = "left_not_chosen"
NOT_GOOD = "left_not_good"
IN_LOOPS = "left_in_loops"
ALIKE = "left_alike"
WAITING = "left_waiting"
HELD_OUT = "held_out_steps"
UNDRAWN = "left_undrawn"
"""Outcomes of steps: the figures that count them."""

LOOP = "it is part of a loop: what it led to was undone, or nothing changed"
"""Reason for leaving out a step that ``selection.on_the_way`` excludes."""


@dataclass(eq=False, slots=True)
class Row:
    """What an update made of one step."""

    episode: Trajectory
    place: int
    """The step's index in the episode."""
    outcome: str
    """The figure that counts the step, such as ``KEPT``."""
    reason: str
    """The reason, in words."""
    weight: float = 0.0
    """The step's weight in the policy's loss; 0 if it is left out, below 0 if its action is made less likely."""
    advantage: float | None = None
    """How much better the step was than expected."""
    value: float | None = None
    """A value function's estimate before the step."""
    learned: bool = False
    """Whether some step of the optimiser was made from it."""

    @property
    def observation(self) -> Observation:
        return seen_at(self.episode, self.place)

    @property
    def action(self) -> Json:
        return self.episode.steps[self.place].action


class Learned(NamedTuple):
    """What an update returns."""

    figures: Mapping[str, float]
    """Figures for ``metrics.jsonl``."""
    rows: Sequence[Row]
    """The table, in any order. A step that plays several parts has several rows."""


def rows_of(episode: Trajectory, outcome: str, reason: str) -> list[Row]:
    """Returns a row for each step of an episode."""
    return [Row(episode, place, outcome, reason) for place in range(len(episode.steps))]


def learned_from(rows: Sequence[Row], places: Iterable[int]) -> None:
    """Marks the rows at these places as learned from."""
    for place in places:
        rows[place].learned = True


def counts(rows: Iterable[Row], *outcomes: str) -> dict[str, float]:
    """Returns how many rows have each of the outcomes; of those with a weight, the ones that were learned from.

    ``UNDRAWN`` counts those of outcome ``KEPT`` that were not.
    """
    found = Counter(map(_figure, rows))
    return {outcome: float(found[outcome]) for outcome in outcomes}


def _figure(row: Row) -> str:
    if row.learned or not row.weight:
        return row.outcome
    return UNDRAWN if row.outcome == KEPT else ""
