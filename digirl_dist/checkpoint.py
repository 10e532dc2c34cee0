"""Checkpoints: the policy's weights with a manifest that has a digest per tensor, and the trainer's state beside it.

``checkpoints/NNNNNN/`` holds ``policy.safetensors``, ``trainer.pt``, ``metrics.json`` and ``manifest.json``; NNNNNN
is the number of updates made. A checkpoint exists when its folder has its final name, which is given last;
``checkpoints/latest`` points to the newest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist import durable
from digirl_dist.digest import digest
from digirl_dist.errors import CheckpointError
from digirl_dist.tasks import Json

if TYPE_CHECKING:
    import torch

State = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: digest of its bytes, torch dtype name, shape."""

    digest: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the host. ``iteration`` updates have been made; it is also the policy's version."""

    folder: Path
    iteration: int
    tensors: dict[str, TensorInfo]

    def state(self) -> dict[str, torch.Tensor]:
        """The policy's weights. Raises CheckpointError if a tensor is missing or altered."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / "policy.safetensors"
        try:
            state = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if describe(state) != self.tensors:
            raise CheckpointError(f"{path} differs from its manifest; remove its folder to go on from the one before")
        return state

    def blobs(self, digests: set[str]) -> Iterator[tuple[str, memoryview]]:
        """The bytes of the tensors with these digests, as (digest, bytes)."""
        from safetensors import safe_open

        with safe_open(self.folder / "policy.safetensors", framework="pt") as weights:
            for name, info in self.tensors.items():
                if info.digest in digests:
                    digests = digests - {info.digest}
                    yield info.digest, raw_bytes(weights.get_tensor(name))

    def trainer_state(self) -> dict[str, Any]:
        """Optimisers, critics, random states. Our own file, loaded without unpickling objects."""
        import torch

        state: dict[str, Any] = torch.load(self.folder / "trainer.pt", weights_only=True)
        return state

    def metrics(self) -> dict[str, Json]:
        """The figures of the update that made it."""
        metrics: dict[str, Json] = json.loads((self.folder / "metrics.json").read_text())
        return metrics

    def wire(self) -> dict[str, Json]:
        """The manifest as it is sent to workers: name -> [digest, dtype, shape]."""
        return {name: [info.digest, info.dtype, list(info.shape)] for name, info in self.tensors.items()}


class Checkpoints:
    """The checkpoints of a run folder. ``keep_every``: older ones whose iteration it does not divide are removed."""

    def __init__(self, root: Path, keep_every: int = 1) -> None:
        self.root = root
        self._keep_every = keep_every

    def newest(self) -> Checkpoint | None:
        iterations = self._iterations()
        return self.open(iterations[-1]) if iterations else None

    def open(self, iteration: int) -> Checkpoint:
        """Raises CheckpointError naming the file that cannot be used."""
        folder = self._folder(iteration)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            tensors = {name: TensorInfo(info[0], info[1], tuple(info[2])) for name, info in manifest["tensors"].items()}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise CheckpointError(f"{folder / 'manifest.json'} cannot be read: {error}") from error
        return Checkpoint(folder, iteration, tensors)

    def save(
        self, iteration: int, policy: State, trainer: Mapping[str, Any], metrics: Mapping[str, Json]
    ) -> Checkpoint:
        """Write durably; a crash at any moment leaves either no checkpoint of this number or a whole one."""
        import torch
        from safetensors.torch import save_file

        policy = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in policy.items()}
        part = self._folder(iteration).with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        checkpoint = Checkpoint(self._folder(iteration), iteration, describe(policy))
        save_file(policy, part / "policy.safetensors")
        torch.save(dict(trainer), part / "trainer.pt")
        durable.write_json(part / "metrics.json", dict(metrics))
        durable.write_json(part / "manifest.json", {"iteration": iteration, "tensors": checkpoint.wire()})
        durable.flush(part / "policy.safetensors")
        durable.flush(part / "trainer.pt")
        durable.replace_durably(part, checkpoint.folder)
        self._point_latest_to(checkpoint.folder)
        self._remove_superseded(iteration)
        return checkpoint

    def _folder(self, iteration: int) -> Path:
        return self.root / f"{iteration:06d}"

    def _iterations(self) -> list[int]:
        return sorted(int(path.name) for path in self.root.glob("[0-9]*") if path.name.isdigit())

    def _point_latest_to(self, folder: Path) -> None:
        part = self.root / "latest.part"
        part.unlink(missing_ok=True)
        part.symlink_to(folder.name)
        os.replace(part, self.root / "latest")

    def _remove_superseded(self, newest: int) -> None:
        for iteration in self._iterations():
            if iteration < newest and iteration % self._keep_every:
                shutil.rmtree(self._folder(iteration))


def describe(state: State) -> dict[str, TensorInfo]:
    """Digest, dtype and shape of each tensor."""
    return {
        name: TensorInfo(digest(raw_bytes(tensor)), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in state.items()
    }


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in C order, native byte order."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def tensor_from(data: bytes, info: TensorInfo) -> torch.Tensor:
    """The inverse of ``raw_bytes``. Raises CheckpointError if ``data`` has another digest."""
    import torch

    if digest(data) != info.digest:
        raise CheckpointError(f"a tensor's bytes have digest {digest(data)} instead of {info.digest}")
    dtype = getattr(torch, info.dtype)
    if not data:
        return torch.empty(info.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(info.shape)
