"""Checkpoints: the policy's weights, a manifest with a digest per tensor, and the trainer's state.

``checkpoints/NNNNNN/`` holds ``policy.safetensors``, ``trainer.pt``, ``metrics.json`` and ``manifest.json``; NNNNNN
is the number of updates made. A checkpoint exists once its folder has its final name; that rename comes last.
``checkpoints/latest`` points to the newest, ``checkpoints/best`` to the one of highest success in evaluations.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from digirl_dist.errors import CheckpointError, StateError
from digirl_dist.plain_text import in_short
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.storage.digest import digest, file_digest, part_digest
from digirl_dist.storage.disk_full import FailFast, WritePolicy, library_errors_as_oserror
from digirl_dist.types import Json, Natural

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

State = Mapping[str, "torch.Tensor"]
_TRASH = ".trash-"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: the digest of its bytes, the name of its torch dtype, its shape."""

    digest: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return int(self.torch_dtype.itemsize)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Raises CheckpointError for a name that is none of a dtype."""
        import torch

        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(f"there are no tensors of type {self.dtype!r:.80}")
        return found

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


_MOST_TENSORS = 20_000
_LONGEST_HEADER = 8 << 20
_REMEDY = "remove its folder to resume from the one before"
"""For a damaged checkpoint."""


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Raises CheckpointError for a file that is missing or damaged: a pickle, say, then raises nearly anything."""
    try:
        yield
    except Exception as error:
        why = " ".join(regular_file.defect(error).split())[:300]
        raise CheckpointError(f"{path} cannot be read: {why}{remedy and f'; {remedy}'}") from error


class _Place(msgspec.Struct):
    """Where a tensor lies behind the header of a safetensors file, which also has metadata without a place."""

    data_offsets: tuple[Natural, Natural] = (0, 0)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the host. ``iteration`` is the number of updates made and the policy's version."""

    folder: Path
    iteration: int
    tensors: dict[str, TensorInfo]
    files: dict[str, str] = field(default_factory=dict)
    """Digests of ``trainer.pt`` and ``metrics.json``."""
    policy: Mapping[str, Json] = field(default_factory=dict)
    """What builds the agent (see ``assembly.policy``)."""

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the policy's weights. Raises CheckpointError if a tensor is missing or altered."""
        from safetensors.torch import load_file

        path = self._weights()
        with reading(path, _REMEDY):
            state = load_file(path)
        if describe(state) != self.tensors:
            raise CheckpointError(f"{path} differs from its manifest; {_REMEDY}")
        return state

    def open(self) -> Any:
        """Opens the weights with ``safetensors.safe_open``, which reads tensor by tensor. Raises CheckpointError."""
        from safetensors import safe_open

        with reading(path := self._weights(), _REMEDY):
            return safe_open(path, framework="pt")

    def parts(self) -> dict[str, tuple[BinaryIO, int, int]]:
        """Returns, for each tensor, the open file of the weights, and offset and size of its bytes there.

        The format is that of safetensors: the size of a JSON header, the header, the tensors. Raises CheckpointError.
        """
        with reading(path := self.folder / "policy.safetensors", _REMEDY):
            file = regular_file.opened(path, 0)  # closed with the last that has it
            size = int.from_bytes(file.read(8), "little")
            if size > _LONGEST_HEADER:
                raise ValueError(f"its header has {size:,} bytes, more than {_LONGEST_HEADER:,}")
            header = msgspec.json.decode(file.read(size), type=dict[str, _Place])
            if len(header) > _MOST_TENSORS:
                raise ValueError(f"it has {len(header):,} tensors, more than {_MOST_TENSORS:,}")
            places = {name: header[name].data_offsets for name in self.tensors}
        return {name: (file, 8 + size + begin, end - begin) for name, (begin, end) in places.items()}

    def verify(self) -> None:
        """Compares the bytes of the weights with their digests, in constant memory. Raises CheckpointError."""
        for name, (file, place, size) in self.parts().items():
            if part_digest(file, place, size) != self.tensors[name].digest:
                raise CheckpointError(f"{self.folder / 'policy.safetensors'} differs from its manifest; {_REMEDY}")

    def _weights(self) -> Path:
        """Returns the path of the weights after reading their header. Raises CheckpointError."""
        for file, _, _ in self.parts().values():
            file.close()
        return self.folder / "policy.safetensors"

    def trainer_state(self) -> dict[str, Any]:
        """Returns optimisers, critics and random states, loaded without unpickling objects. Raises CheckpointError."""
        from digirl_dist.storage.safe_torch_load import load_state

        with reading(path := self._intact("trainer.pt"), _REMEDY):
            state: dict[str, Any] = load_state(path)
        return state

    def metrics(self) -> dict[str, Json]:
        """Returns the metrics of the update that made this checkpoint. Raises CheckpointError."""
        with reading(path := self._intact("metrics.json"), _REMEDY):
            metrics: dict[str, Json] = json.loads(regular_file.content(path))
        return metrics

    def _intact(self, name: str) -> Path:
        """Returns the path of a file that is as it was written. Raises CheckpointError."""
        path = self.folder / name
        with reading(path, _REMEDY):
            differs = file_digest(path, regular_file.LARGE) != self.files[name]  # moments may be all zeros, so holes
        if differs:
            raise CheckpointError(f"{path} differs from its manifest; {_REMEDY}")
        return path

    def wire(self) -> dict[str, Json]:
        """Returns the manifest in the form sent to workers: name -> [digest, dtype, shape]."""
        return {name: [info.digest, info.dtype, list(info.shape)] for name, info in self.tensors.items()}


class _Manifest(msgspec.Struct):
    """What ``manifest.json`` says."""

    iteration: Natural
    tensors: dict[str, tuple[str, str, tuple[Natural, ...]]]
    files: dict[str, str]
    policy: dict[str, Json]


class _Best(msgspec.Struct):
    """What ``best.json`` says."""

    iteration: Natural
    success_rate: float | None = None
    reward_mean: float | None = None
    """In place of the former, of an environment that tells no success."""


class Checkpoints:
    """The checkpoints of a run folder.

    Always keeps the newest, the ``in_use`` before it, and the best. Of the others it keeps the newest of those whose
    iteration ``keep_every`` divides, ``keep`` in all (None: no limit). ``write_policy`` applies while the disk is full.
    ``policy`` describes the agent in the manifest of each checkpoint.
    """

    def __init__(
        self,
        root: Path,
        keep_every: int = 1,
        keep: int | None = None,
        in_use: int = 0,
        write_policy: WritePolicy | None = None,
        policy: Mapping[str, Json] | None = None,
    ) -> None:
        self.root = root
        self._keep_every = keep_every
        self._keep = keep
        self._in_use = in_use
        self._write_policy = write_policy or FailFast()
        self._policy = dict(policy or {})

    def newest(self) -> Checkpoint | None:
        iterations = self.iterations()
        return self.open(iterations[-1]) if iterations else None

    def has_any(self) -> bool:
        return bool(self.iterations())

    def rate(self, checkpoint: Checkpoint, value: float, figure: str = "success_rate") -> None:
        """Records how well a checkpoint did, by its success rate or ``reward_mean``.

        It becomes the best unless an older one did at least as well by the same figure.
        """
        best, path = self._best(), self.root / "best.json"
        before = getattr(best, figure, None)
        if best is None or before is None or before < value:
            best, told = _Best(checkpoint.iteration), {"iteration": checkpoint.iteration, figure: value}
            self._write_policy.wait_for(str(path), lambda: atomic_files.write_json(path, told))
        self._point("best", self._folder(best.iteration))  # a crash may have left it behind
        self._remove_superseded(self.iterations()[-1])

    def best(self) -> Checkpoint | None:
        """Returns the checkpoint that did best; None before any was rated."""
        best = self._best()
        return None if best is None else self.open(best.iteration)

    def _best(self) -> _Best | None:
        """Returns the record of the best checkpoint. Raises CheckpointError naming the file if it is damaged."""
        path = self.root / "best.json"
        with reading(path, "remove it"):
            return msgspec.json.decode(regular_file.content(path), type=_Best) if path.exists() else None

    def open(self, iteration: int) -> Checkpoint:
        """Returns the checkpoint of an iteration. Raises CheckpointError naming the file that cannot be used."""
        checkpoint = read_checkpoint(self._folder(iteration), _REMEDY)
        if checkpoint.iteration != iteration:
            raise CheckpointError(
                f"{checkpoint.folder} holds the checkpoint of iteration {checkpoint.iteration}; {_REMEDY}"
            )
        return checkpoint

    def save(
        self,
        iteration: int,
        policy: State,
        trainer: Mapping[str, Any],
        metrics: Mapping[str, Json],
        table: pa.Table | None = None,
    ) -> Checkpoint:
        """Writes a checkpoint durably. A crash at any moment leaves no checkpoint of this number or a whole one.

        ``table`` is that of the update which made it (``storage.update_table``), and stays when the checkpoint goes.
        """
        self._write_policy.wait_for(str(self.table(iteration)), lambda: _write_table(self.table(iteration), table))
        if (best := self._best()) is not None and best.iteration >= iteration:  # of a checkpoint that was removed
            (self.root / "best.json").unlink()
        policy = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in policy.items()}
        part = self._folder(iteration).with_suffix(".part")
        checkpoint = Checkpoint(self._folder(iteration), iteration, describe(policy), policy=self._policy)
        name = str(checkpoint.folder)
        checkpoint = self._write_policy.wait_for(name, lambda: _write(part, checkpoint, policy, trainer, metrics))
        self._write_policy.wait_for(name, lambda: _publish(part, checkpoint.folder))
        self._point("latest", checkpoint.folder)
        self._remove_superseded(iteration)
        return checkpoint

    def table(self, iteration: int) -> Path:
        """Returns where the table of the update lies that made the checkpoint of an iteration."""
        return self.root / "updates" / f"{iteration:06d}.parquet"

    def _folder(self, iteration: int) -> Path:
        return self.root / f"{iteration:06d}"

    def iterations(self) -> list[int]:
        """Returns the iterations whose checkpoints are kept, in order."""
        return sorted(int(path.name) for path in self.root.glob("[0-9]*") if path.name.isdecimal())

    def _point(self, name: str, folder: Path) -> None:
        """Has a link lead to a checkpoint."""
        link = self.root / name
        self._write_policy.wait_for(str(link), lambda: _link(link, folder.name))

    def _remove_superseded(self, newest: int) -> None:
        """Raises CheckpointError if nothing tells which is the best.

        Also removes what a killed process left half-written, whatever number its caller had given it.
        """
        for trash in (*self.root.glob(f"{_TRASH}*"), *self.root.glob("[0-9]*.part")):
            shutil.rmtree(trash, ignore_errors=True)
        rated = self._best()
        best = None if rated is None else rated.iteration
        older = [iteration for iteration in self.iterations() if iteration < newest - self._in_use]
        regular = [iteration for iteration in older if iteration % self._keep_every == 0]
        kept = regular if self._keep is None else regular[len(regular) - min(len(regular), self._keep - 1) :]
        for iteration in older:
            if iteration not in kept and iteration != best:
                _discard(self._folder(iteration))


def _discard(folder: Path) -> None:
    """Deletes a checkpoint, of which this process or another one may have a file open.

    On NFS such a file stays in its folder, which cannot go before it: what is left is swept by a later call.
    """
    trash = folder.with_name(_TRASH + folder.name)
    with suppress(OSError):
        folder.rename(trash)
    for place in (trash, folder):
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def loading(checkpoint: str) -> Iterator[None]:
    """Raises CheckpointError, naming ``checkpoint``, if a run's agent or algorithm cannot load what it holds."""
    try:
        yield
    except (StateError, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint} does not fit the configured agent and algorithm; use the "
            "configuration that the run was started with, or another save_path, and start_from to begin with this "
            f"one's policy ({in_short(error)})"
        ) from error


def read_checkpoint(folder: Path, remedy: str = "") -> Checkpoint:
    """Returns the checkpoint in ``folder``, whatever its name. Raises CheckpointError naming the file."""
    path = folder / "manifest.json"
    with reading(path, remedy):
        manifest = msgspec.json.decode(regular_file.content(path), type=_Manifest)
        if len(manifest.tensors) > _MOST_TENSORS:
            raise ValueError(f"it names {len(manifest.tensors):,} tensors, more than {_MOST_TENSORS:,}")
    tensors = {name: TensorInfo(*info) for name, info in manifest.tensors.items()}
    return Checkpoint(folder, manifest.iteration, tensors, manifest.files, manifest.policy)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file that a person named. Raises CheckpointError."""
    from safetensors.torch import load_file

    with reading(path):
        regular_file.opened(path, named=True).close()
        state: dict[str, torch.Tensor] = load_file(path)
    return state


def _write(
    part: Path, checkpoint: Checkpoint, policy: State, trainer: Mapping[str, Any], metrics: Mapping[str, Json]
) -> Checkpoint:
    """Writes all files of the checkpoint from scratch below ``part`` and flushes them to disk; returns it with their
    digests."""
    import torch
    from safetensors.torch import save_file

    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with library_errors_as_oserror(part / "policy.safetensors"):
        save_file(dict(policy), part / "policy.safetensors")
    # A file of Python's tells why it cannot be written; given a path, PyTorch does not.
    with library_errors_as_oserror(part / "trainer.pt"), atomic_files.created(part / "trainer.pt") as file:
        torch.save(dict(trainer), file)
    atomic_files.write_json(part / "metrics.json", dict(metrics))
    files = {name: file_digest(part / name, regular_file.LARGE) for name in ("trainer.pt", "metrics.json")}
    made_of = {"iteration": checkpoint.iteration, "policy": checkpoint.policy, "tensors": checkpoint.wire()}
    atomic_files.write_json(part / "manifest.json", {**made_of, "files": files})
    atomic_files.flush(part / "policy.safetensors")
    atomic_files.flush(part / "trainer.pt")
    return replace(checkpoint, files=files)


def _write_table(path: Path, table: pa.Table | None) -> None:
    if table is None:
        path.unlink(missing_ok=True)
        return
    from digirl_dist.storage import update_table  # Arrow, which workers do without

    path.parent.mkdir(parents=True, exist_ok=True)
    update_table.write(path, table)


def _publish(part: Path, folder: Path) -> None:
    """Gives the checkpoint its final name. Idempotent."""
    if part.exists():
        atomic_files.replace(part, folder)


def _link(link: Path, target: str) -> None:
    part = link.with_name(f"{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    if link.is_dir() and not link.is_symlink():  # scp, say, has copied what the link led to
        shutil.rmtree(link)
    os.replace(part, link)


def describe(state: State) -> dict[str, TensorInfo]:
    """Returns the digest, dtype and shape of each tensor."""
    return {
        name: TensorInfo(digest(raw_bytes(tensor)), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in state.items()
    }


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's elements in C order and native byte order."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def tensor_from(data: bytearray | memoryview, info: TensorInfo) -> torch.Tensor:
    """Inverts ``raw_bytes``; the tensor shares the memory of ``data``. Raises CheckpointError if the digest differs."""
    import torch

    if digest(data) != info.digest:
        raise CheckpointError(f"a tensor's bytes have digest {digest(data)} instead of {info.digest}")
    dtype = info.torch_dtype
    return torch.frombuffer(data, dtype=dtype).reshape(info.shape) if data else torch.empty(info.shape, dtype=dtype)
