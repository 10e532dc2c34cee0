"""Where the seconds of a slot go: each belongs to exactly one activity, so the parts add up to the whole."""

from __future__ import annotations

import time
from collections import defaultdict

from digirl_dist.types import Clock

ACTIVITIES = ("boot", "reset", "step", "policy", "push", "barrier", "update", "faults", "speculation", "closed", "away")
"""In words: starting an emulator; its reset; its steps; waiting for the policy's action; having no ticket while the
checkpoint comes, while other slots finish, or while the host learns; work that was lost with an emulator; work that
another worker finished first; being out of service; what nobody can tell, since the worker was lost."""


class SlotTime:
    """The clock of one slot, in seconds of this machine."""

    def __init__(self, activity: str = "boot", clock: Clock = time.monotonic) -> None:
        self._activity = activity
        self._clock = clock
        self._since = clock()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._uncertain: defaultdict[str, float] = defaultdict(float)

    def enter(self, activity: str) -> None:
        """Begins an activity and ends the one before."""
        self._book()
        self._activity = activity

    def settle(self, lost_to: str | None = None) -> None:
        """Ends an episode: its seconds stay where they are, or are booked under what they were lost to."""
        self._book()
        for activity, seconds in self._uncertain.items():
            self._spent[lost_to or activity] += seconds
        self._uncertain.clear()

    def take(self) -> dict[str, float]:
        """Returns the seconds by activity since the last call. Those of an episode under way come when it is over."""
        self._book()
        spent = dict(self._spent)
        self._spent.clear()
        return spent

    def _book(self) -> None:
        now = self._clock()
        in_episode = self._activity in ("reset", "step", "policy")
        (self._uncertain if in_episode else self._spent)[self._activity] += now - self._since
        self._since = now
