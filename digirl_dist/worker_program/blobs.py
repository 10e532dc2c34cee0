"""What the host pushed to a worker, by digest: tensors, and the packed agent and emulator."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from digirl_dist.errors import CheckpointError
from digirl_dist.protocol.job_folder import JobFolder
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
