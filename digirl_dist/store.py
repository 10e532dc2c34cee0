"""The trajectories of a run folder: where episodes land one by one, and the file of each finished iteration.

``trajectories/.landing/NNNNNN/TICKET.parquet`` holds single episodes of the iteration under way; once it is complete
they become ``trajectories/NNNNNN.parquet``. An episode that landed is durable and is never run again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from digirl_dist import durable, table
from digirl_dist.harvest import Harvest
from digirl_dist.trajectory import Trajectory


class Store:
    """Reads and writes the trajectories below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._landing = root / ".landing"
        self._recent: dict[int, Sequence[Trajectory]] = {}
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)

    def incoming(self, iteration: int, name: str) -> Path:
        """Where a transfer may write a file that is not checked yet."""
        folder = self._landing / f"{iteration:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f".incoming-{name}"

    def land(self, trajectory: Trajectory, checked: Path | None = None) -> bool:
        """Make an episode durable. False if its ticket had landed already: then nothing changes.

        ``checked`` is a file with exactly this episode, which is moved; without it the episode is written.
        """
        ticket = trajectory.ticket
        path = self.incoming(ticket.iteration, "").with_name(f"{ticket.index:05d}.parquet")
        with self._lock:
            if path.exists() or self._file(ticket.iteration).exists():
                return False
            if checked is None:
                table.write(path, [trajectory])
            else:
                durable.replace_durably(checked, path)
        return True

    def landed(self, iteration: int) -> dict[int, Trajectory]:
        """Episodes of the iteration that are safe, by ticket index."""
        if self._file(iteration).exists():
            trajectories = list(self.read(iteration))
        else:
            paths = sorted((self._landing / f"{iteration:06d}").glob("[0-9]*.parquet"))
            trajectories = [trajectory for path in paths for trajectory in table.read(path)]
        return {trajectory.ticket.index: trajectory for trajectory in trajectories}

    def append(self, harvest: Harvest) -> None:
        """Write the iteration's file. Harmless when repeated."""
        path = self._file(harvest.iteration)
        if not path.exists():
            table.write(path, harvest.trajectories)
        shutil.rmtree(self._landing / f"{harvest.iteration:06d}", ignore_errors=True)
        self._recent[harvest.iteration] = harvest.trajectories
        harvest.stored_at = time.monotonic()

    def read(self, iteration: int) -> Sequence[Trajectory]:
        """The episodes of a finished iteration, in the order of their tickets."""
        if iteration not in self._recent:
            self._recent[iteration] = table.read(self._file(iteration))
        return self._recent[iteration]

    def replay(self, until: int, capacity: int) -> list[Trajectory]:
        """The newest ``capacity`` episodes of the iterations up to and with ``until``, oldest first."""
        newest: list[Trajectory] = []
        iteration = until
        while iteration >= 0 and len(newest) < capacity and self._file(iteration).exists():
            newest = [*self.read(iteration), *newest]
            iteration -= 1
        for old in [key for key in self._recent if key <= iteration]:
            del self._recent[old]
        return newest[-capacity:]

    def _file(self, iteration: int) -> Path:
        return self.root / f"{iteration:06d}.parquet"
