"""Episodes in the folder of a worker, until the host has them safely."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable
from pathlib import Path

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import MOST_BYTES, EpisodeManifest, decode_manifest, encode_manifest
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

    def found(self, run: str) -> list[SpooledFile]:
        """Returns what lies there, by name, and deletes files that are no manifests of this run's episodes.

        Folders stay as they are, and so does what links lead to. Raises OSError if the folder cannot be listed.
        """
        paths = sorted(path for path in self._folder.episodes.iterdir() if path.suffix == ".json")
        return [self._read(path, run) for path in paths]

    def delete(self, names: Iterable[str]) -> None:
        """Deletes the manifest of each first."""
        for name in names:
            self._folder.manifest(name).unlink(missing_ok=True)
            self._folder.episode(name).unlink(missing_ok=True)

    def _read(self, path: Path, run: str) -> SpooledFile:
        try:
            manifest = decode_manifest(_content(path))
            if manifest.run != run:
                raise ProtocolError(f"it is of run {manifest.run}, not of {run}")
            if manifest.episode_id != path.stem:
                raise ProtocolError(f"it is a copy of {manifest.episode_id}.json")
        except (OSError, ProtocolError) as error:
            return SpooledFile(path.name, None, f"it is not a manifest of this run: {error}{_deleted(path)}")
        return SpooledFile(path.name, manifest)


def _content(path: Path) -> bytes:
    """Returns what is in a manifest. Raises ProtocolError for what cannot be one, without opening it."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ProtocolError("it is no regular file")
    if found.st_size > MOST_BYTES:
        raise ProtocolError(f"it has {found.st_size} bytes")
    return path.read_bytes()


def _deleted(path: Path) -> str:
    """Deletes the file; returns what to add to the reason if that cannot be."""
    try:
        path.unlink()
    except OSError as error:
        return f"; it stays there: {error.strerror}"
    return ""
