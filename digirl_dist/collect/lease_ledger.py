"""Which leases were given, in a file, so that a host that is restarted knows those of its predecessor.

An episode lands only for a lease that was given. What a full disk or a power cut leaves out is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from digirl_dist.collect.leases import Grant
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, json_lines
from digirl_dist.tasks import Key

_LINE = tuple[str, Key, int, int, str]
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_LINE)


class LeaseLedger:
    """Implements ``Ledger`` by a file with one line per lease."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> Sequence[Grant]:
        try:
            with regular_file.opened(self._path) as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with suppress(msgspec.MsgspecError):  # cut by a crash
                found.append(Grant(*_DECODER.decode(line)))
        return found

    def add(self, grants: Sequence[Grant]) -> None:
        with suppress(OSError):
            json_lines.append(self._path, _lines(grants))

    def replace(self, grants: Sequence[Grant]) -> None:
        with suppress(OSError):
            atomic_files.write_bytes(self._path, _lines(grants), flushed=False)


def _lines(grants: Sequence[Grant]) -> bytes:
    lines = ((grant.worker, grant.key, grant.attempt, grant.version, grant.asks) for grant in grants)
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)
