"""Episodes that broke an update, in ``trajectories/.refused/``: each with a note of its worker and the reason."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from digirl_dist.errors import RunFolderError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, parquet
from digirl_dist.storage.disk_full import WritePolicy
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class RefusedEpisode:
    """An episode that is no longer learned from."""

    worker: str
    iteration: int
    """Of its ticket."""
    ticket: int
    episode: str
    reason: str


class RefusedEpisodes:
    """The folder of refused episodes, and the mark of an update that ended its process."""

    def __init__(self, root: Path, write_policy: WritePolicy) -> None:
        self._root = root
        self._write_policy = write_policy

    def add(self, episode: Trajectory, reason: str) -> RefusedEpisode:
        """Stores the episode with a note, which is written last. Idempotent."""
        ticket = episode.ticket
        refused = RefusedEpisode(episode.worker, ticket.iteration, ticket.index, episode.episode_id, reason)
        rows = self._root / f"{ticket.iteration:06d}-{ticket.index:05d}.parquet"
        self._make()
        self._write_policy.wait_for(str(rows), lambda: parquet.write(rows, [episode]))
        note = rows.with_suffix(".json")
        self._write_policy.wait_for(str(note), lambda: atomic_files.write_json(note, asdict(refused)))
        return refused

    def all(self) -> list[RefusedEpisode]:
        """Returns every refused episode of the run. Raises RunFolderError naming a damaged note."""
        return [_read(path) for path in sorted(self._root.glob("[0-9]*.json"))]

    def suspect(self, iteration: int) -> None:
        """Marks the update of an iteration, so that the next start looks for an episode that broke it."""
        self._make()
        self._write_policy.wait_for(str(self._mark), lambda: atomic_files.write_json(self._mark, iteration))

    def is_suspect(self, iteration: int) -> bool:
        """Returns whether this iteration's update was marked."""
        try:
            return bool(json.loads(regular_file.content(self._mark)) == iteration)
        except (OSError, ValueError, RecursionError):
            return False

    def clear(self) -> None:
        """Removes the mark."""
        self._mark.unlink(missing_ok=True)

    @property
    def _mark(self) -> Path:
        return self._root / "suspect.json"

    def _make(self) -> None:
        self._write_policy.wait_for(str(self._root), lambda: self._root.mkdir(parents=True, exist_ok=True))


def _read(path: Path) -> RefusedEpisode:
    try:
        return RefusedEpisode(**json.loads(regular_file.content(path)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged; restore it or choose another save_path") from error
