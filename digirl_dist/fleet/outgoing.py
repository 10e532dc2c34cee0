"""A checkpoint on its way to all workers: in the number format of the wire, whole or as deltas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from digirl_dist.protocol import tensor_delta
from digirl_dist.protocol.messages import TensorEntry
from digirl_dist.settings import PushDtype
from digirl_dist.ssh.channel import FilePart
from digirl_dist.storage.checkpoint import Checkpoint, TensorInfo, raw_bytes
from digirl_dist.storage.digest import digest

_SAMPLE = 1 << 18
_WORTH_A_PART = 1 << 16
"""Fewer bytes are sent together with others."""


@dataclass(frozen=True)
class Sample:
    """The size and speed of a delta of a part of the tensor."""

    ratio: float
    """Its size in relation to the plain bytes."""
    codec_rate: float
    """Bytes of tensor per second of processor time, to encode."""

    def pays(self, link_rate: float) -> bool:
        """Returns whether delta and codec, at both ends, beat plain bytes at ``link_rate`` bytes per second.

        Decoding is taken to be as slow as encoding; that the two overlap with sending is left as a margin.
        """
        return self.ratio / link_rate + 2.0 / self.codec_rate < 1.0 / link_rate


@dataclass(frozen=True)
class Blob:
    """Bytes that a worker needs under their digest."""

    digest: str
    size: int
    content: Callable[[], memoryview]
    delta: Delta | None = None
    """Delta against the previous version, if the worker has it."""
    part: FilePart | None = None
    """Where the bytes lie in a file, if they do."""
    published: Set[str] = frozenset()
    """Digests of all tensors of the policy to which it belongs; empty for what is no tensor."""

    def rest(self, offset: int = 0) -> memoryview | FilePart:
        """Returns the bytes from ``offset`` on, of a large blob in its file."""
        if self.part is not None and self.size - offset >= _WORTH_A_PART:
            return self.part.after(offset)
        return self.content()[offset:]

    @classmethod
    def of(cls, data: bytes) -> Blob:
        return cls(digest(data), len(data), lambda: memoryview(data))


class Delta:
    """The change of one tensor from the previous version. Any thread may ask; results are kept for the others."""

    def __init__(self, base: str, width: int, new: Callable[[], memoryview], old: Callable[[], memoryview]) -> None:
        self.base = base
        """Digest of the previous version."""
        self.width = width
        """Bytes of one number."""
        self._new = new
        self._old = old
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._content: bytes | None = None

    def sample(self) -> Sample:
        """Tries the codec on a part from the middle."""
        with self._lock:
            if self._sample is None:
                new, old = self._new(), self._old()
                start = (len(new) - min(len(new), _SAMPLE)) // 2 // self.width * self.width
                new, old = new[start : start + _SAMPLE], old[start : start + _SAMPLE]
                started = time.thread_time()  # in so short a time the clock measures who else wants the interpreter
                size = len(tensor_delta.encode(new, old, self.width))
                self._sample = Sample(size / len(new), len(new) / max(1e-6, time.thread_time() - started))
            return self._sample

    def content(self) -> bytes:
        with self._lock:
            if self._content is None:
                self._content = tensor_delta.encode(self._new(), self._old(), self.width)
            return self._content


class Weights:
    """The tensors of a checkpoint as they travel. The file stays open, so it may be deleted meanwhile.

    ``before`` saves the digests of tensors that did not change. Raises CheckpointError if there is no such file.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: PushDtype, before: Weights | None = None) -> None:
        self.checkpoint = checkpoint
        self._casts = dtype is PushDtype.bfloat16
        self._file = checkpoint.open()
        self._parts = checkpoint.parts()
        known = (
            {} if before is None else {info: before.tensors[name] for name, info in before.checkpoint.tensors.items()}
        )
        self.tensors: dict[str, TensorInfo] = {
            name: known.get(info) or self._on_wire(name, info) for name, info in checkpoint.tensors.items()
        }

    def content(self, name: str) -> memoryview:
        tensor = self._file.get_tensor(name)
        return raw_bytes(tensor.bfloat16() if self._is_cast(self.checkpoint.tensors[name]) else tensor)

    def part(self, name: str) -> FilePart | None:
        """Returns where the file has the tensor as it travels; None if it travels in another format."""
        return None if self._is_cast(self.checkpoint.tensors[name]) else FilePart(*self._parts[name])

    def entry(self, name: str) -> TensorEntry:
        sent, own = self.tensors[name], self.checkpoint.tensors[name]
        return TensorEntry(sent.digest, sent.dtype, list(sent.shape), own.dtype if self._is_cast(own) else None)

    def _is_cast(self, info: TensorInfo) -> bool:
        return self._casts and info.dtype == "float32"

    def _on_wire(self, name: str, info: TensorInfo) -> TensorInfo:
        if not self._is_cast(info):
            return info
        return replace(info, digest=digest(self.content(name)), dtype="bfloat16")


class PublishedPolicy(Protocol):
    """A policy version that workers shall run episodes with."""

    @property
    def iteration(self) -> int: ...

    def tensor_entries(self) -> dict[str, TensorEntry]:
        """Returns the tensors as a LoadPolicy names them."""

    def blobs(self, digests: set[str]) -> list[Blob]:
        """Returns the tensors with these digests, each once."""


@dataclass(frozen=True)
class Named:
    """A version that the host itself acts with: workers need its number, and nothing else."""

    iteration: int

    def tensor_entries(self) -> dict[str, TensorEntry]:
        return {}

    def blobs(self, digests: set[str]) -> list[Blob]:
        return []


class Outgoing:
    """The weights that workers shall act with next; most of them have those of ``before``."""

    def __init__(self, weights: Weights, before: Weights | None) -> None:
        self.weights = weights
        self.iteration = weights.checkpoint.iteration
        tensors = weights.tensors
        self._digests = frozenset(info.digest for info in tensors.values())
        self._blobs = {info.digest: self._blob(name, info, before) for name, info in tensors.items()}

    def tensor_entries(self) -> dict[str, TensorEntry]:
        return {name: self.weights.entry(name) for name in self.weights.tensors}

    def blobs(self, digests: set[str]) -> list[Blob]:
        """Returns the tensors with these digests, each once."""
        return [blob for name, blob in self._blobs.items() if name in digests]

    def _blob(self, name: str, info: TensorInfo, before: Weights | None) -> Blob:
        content, part = partial(self.weights.content, name), self.weights.part(name)
        base = None if before is None else before.tensors.get(name)
        if before is None or base is None or (base.dtype, base.shape) != (info.dtype, info.shape):
            return Blob(info.digest, info.nbytes, content, None, part, self._digests)
        delta = Delta(base.digest, info.itemsize, content, partial(before.content, name))
        return Blob(info.digest, info.nbytes, content, delta, part, self._digests)
