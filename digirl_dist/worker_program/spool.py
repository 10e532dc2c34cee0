"""What lies in the folder of a worker: blobs that the host pushed, and episodes until the host has them safely."""

from __future__ import annotations

import stat
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from digirl_dist.errors import CheckpointError, ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    MOST_NAME,
    EpisodeManifest,
    EpisodeReady,
    UnknownFile,
    decode_manifest,
    encode_manifest,
    shortened,
)
from digirl_dist.rollout.rollout import Finished
from digirl_dist.storage import atomic_files, episode_file
from digirl_dist.storage.checkpoint import TensorInfo, tensor_from
from digirl_dist.storage.digest import file_digest

if TYPE_CHECKING:
    import torch

_PART_KEPT_S = 600.0


class Blobs(Protocol):
    """Blobs that are on this machine."""

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Returns the digests of which nothing is here."""

    def verify(self, digests: Sequence[str]) -> None:
        """Deletes packed factories that were altered, as by a power cut. Tensors are verified when they are read."""

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        """Raises CheckpointError for an altered one, which is then missing."""

    def file(self, digest: str) -> Path:
        """Returns a file with a packed agent or emulator."""

    def keep(self, tensors: Collection[str], packed: Collection[str]) -> None:
        """Lets all go but these tensors and packed factories."""


class FileBlobs:
    """Files in the job folder, where the courier puts them."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._parts_seen: dict[str, float] = {}
        """When the rests of transfers were first met, in monotonic seconds."""

    def missing(self, digests: Sequence[str]) -> list[str]:
        return [name for name in digests if not self.file(name).exists()]

    def verify(self, digests: Sequence[str]) -> None:
        delete_altered(map(self.file, digests))

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        path = self.file(info.digest)
        try:
            return tensor_from(_mapped(path), info)
        except CheckpointError:
            path.unlink(missing_ok=True)
            raise

    def file(self, digest: str) -> Path:
        return self._folder.blob(digest)

    def keep(self, tensors: Collection[str], packed: Collection[str]) -> None:
        keep = {*tensors, *packed}
        for path in self._folder.blobs.glob("*"):  # of none, if somebody cleaned up here
            if path.name not in keep and not (path.suffix == ".part" and self._is_fresh(path)):
                path.unlink(missing_ok=True)
        self._parts_seen = {name: at for name, at in self._parts_seen.items() if self.file(name).exists()}

    def _is_fresh(self, part: Path) -> bool:
        """Whether a transfer may still be at work on it, or come back for it."""
        return time.monotonic() - self._parts_seen.setdefault(part.name, time.monotonic()) < _PART_KEPT_S


def delete_altered(blobs: Iterable[Path]) -> None:
    """Deletes those of these files that are there and are not what their names say."""
    for path in blobs:
        if path.exists() and file_digest(path) != path.name:
            path.unlink(missing_ok=True)


def _mapped(path: Path) -> memoryview:
    """The bytes of a file, which are only read when they are looked at; what is written to them stays in memory."""
    import torch

    if not (size := path.stat().st_size):
        return memoryview(b"")
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy().data


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
        named = self._folder.manifest(trajectory.episode_id)
        atomic_files.write_bytes(named, encode_manifest(manifest), flushed=False)
        return manifest

    def found(self, run: str) -> list[EpisodeReady | UnknownFile]:
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

    def _read(self, path: Path, run: str) -> EpisodeReady | UnknownFile:
        try:
            manifest = decode_manifest(_content(path))
            if manifest.run != run:
                raise ProtocolError(f"it is of run {manifest.run}, not of {run}")
            if manifest.episode_id != path.stem:
                raise ProtocolError(f"it is a copy of {manifest.episode_id}.json")
        except (OSError, ProtocolError) as error:
            reason = f"it is not a manifest of this run: {error}{_deleted(path)}"
            return UnknownFile(shortened(path.name, MOST_NAME), shortened(reason))
        return EpisodeReady(manifest)


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
