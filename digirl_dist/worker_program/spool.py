"""Episodes in the folder of a worker, until the host has them safely."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import EpisodeManifest, decode_manifest, encode_manifest
from digirl_dist.rollout.rollout import Finished
from digirl_dist.storage import atomic_files, episode_file
from digirl_dist.storage.digest import file_digest
from digirl_dist.worker_program.effects import SpooledFile


class Spool:
    """The files of episodes: rows, and a manifest without which the rows do not count."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    def write(self, run: str, finished: Finished) -> EpisodeManifest:
        """Writes the rows first and the manifest last. Raises OSError, or TrajectoryError for what no host would take.

        Unflushed, so that no slot waits for the disk: what a power cut damages here is refused and run again.
        """
        trajectory = finished.trajectory
        path = self._folder.episode(trajectory.episode_id)
        episode_file.write(path, trajectory, flushed=False)
        manifest = EpisodeManifest(
            run=run,
            key=trajectory.ticket.key,
            attempt=trajectory.ticket.attempt,
            policy_version=trajectory.ticket.policy_version,
            episode_id=trajectory.episode_id,
            size=path.stat().st_size,
            digest=file_digest(path),
            slot=trajectory.slot,
            seconds=finished.ended_at - finished.started_at,
            age_s=time.monotonic() - finished.ended_at,
            spent=finished.spent,
        )
        said = encode_manifest(manifest).decode()
        atomic_files.write_text(self._folder.manifest(trajectory.episode_id), said, flushed=False)
        return manifest

    def found(self) -> list[SpooledFile]:
        """Returns what lies there, by name."""
        return [_read(path) for path in sorted(self._folder.episodes.glob("*.json"))]

    def delete(self, names: Iterable[str]) -> None:
        """Deletes the manifest of each first."""
        for name in names:
            self._folder.manifest(name).unlink(missing_ok=True)
            self._folder.episode(name).unlink(missing_ok=True)


def _read(path: Path) -> SpooledFile:
    try:
        return SpooledFile(path.stem, decode_manifest(path.read_bytes()))
    except (OSError, ProtocolError) as error:
        return SpooledFile(path.stem, None, f"{path.name} is not a manifest: {error}")
