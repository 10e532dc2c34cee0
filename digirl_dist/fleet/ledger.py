"""What one worker may cost this host: seconds of its processor, and bytes that wait here to be read or checked."""

from __future__ import annotations

import threading
from typing import Literal

Kept = Literal["unread", "unchecked"]
"""Events that nobody has read, and files that came and are not checked and durable yet."""

MOST_KEPT: dict[Kept, int] = {"unread": 4 << 20, "unchecked": 32 << 20}
"""Bytes as they travel; a message takes several times as many once it is decoded."""

_SHARE = 0.03
"""Of one core, which a worker's messages may take without end."""
_MOST_S = 1.0
"""Seconds of processor time that they may take at once."""
_PER_TICKET_S = 0.01
"""Seconds that a leased ticket, or an answered request, entitles to."""
_PER_BYTE_S = 5e-9
"""What it takes to read a byte of a message, before it is decoded."""


class Ledger:
    """The account of one worker, whatever connections it has. Asked before anything is decoded or kept.

    Beyond a limit, that worker waits: its stream is not read, and its files are not pulled. Any thread may call.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[Kept, int] = dict.fromkeys(MOST_KEPT, 0)
        self._left_s = _MOST_S
        self._at: float | None = None

    def keep(self, what: Kept, size: int) -> None:
        """Notes that so many bytes are kept; negative: are no more."""
        with self._changed:
            self._kept[what] += size
            self._changed.notify_all()

    def keep_once_there_is_room(self, what: Kept, size: int) -> None:
        """Waits until so many more bytes may be kept, and notes them."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_room(what, size))
            self._kept[what] += size

    def has_room(self, what: Kept, size: int = 0) -> bool:
        """Returns whether so many more bytes may be kept; an item on its own always may."""
        with self._changed:
            return self._kept[what] == 0 or self._kept[what] + size < MOST_KEPT[what]

    def earn(self, tickets: int) -> None:
        """Notes tickets that were leased to the worker, or requests that were answered."""
        with self._changed:
            self._left_s = min(_MOST_S, self._left_s + _PER_TICKET_S * tickets)

    def took(self, size: int, seconds: float, now: float) -> None:
        """Notes a message of so many bytes, which took so many seconds of processor time to decode and act on."""
        with self._changed:
            self._refill(now)
            self._left_s -= seconds + _PER_BYTE_S * size

    def debt_s(self, now: float) -> float:
        """Returns for how long no message of the worker is to be read."""
        with self._changed:
            self._refill(now)
            return max(0.0, -self._left_s / _SHARE)

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._left_s = min(_MOST_S, self._left_s + _SHARE * max(0.0, now - self._at))
        self._at = now
