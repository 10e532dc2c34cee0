"""Reads ``torch.save`` files of others: plain containers, numbers, texts, tensors and numeric NumPy arrays only.

``torch.load(weights_only=True)`` runs only the code behind a short list of names. NumPy's names are not on it. Here
they resolve to the small classes below, which read bytes and numbers and never reach NumPy's own unpickling.
"""

from __future__ import annotations

import io
import os
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import regular_file

_KINDS = "biuf"
"""Kinds of NumPy types that are read: booleans, integers and floats. All others could hold objects."""

_SPARE = 64 << 20
_MOST_PER_BYTE = 16
"""Memory that reading a file may take, for each of its bytes: numbers and texts are objects in Python."""


def load_plain(path: Path) -> Any:
    """Returns the content, arrays as np.ndarray. Raises TrajectoryError for any other content, without running it."""
    try:
        _require_safe_torch()
        with (
            limited_memory(_SPARE + _MOST_PER_BYTE * path.stat().st_size),
            torch.serialization.safe_globals(_STAND_INS),
        ):
            return _unwrapped(torch.load(path, map_location="cpu", weights_only=True), {})
    except Exception as error:  # a damaged pickle raises nearly anything, from MemoryError to AssertionError
        reason = " ".join(str(error).split())[-300:]
        raise TrajectoryError(f"{path} is refused, as it is not plain data and tensors: {reason}") from error


def load_state(path: Path) -> Any:
    """Returns tensors and plain data that ``torch.save`` wrote. Raises nearly anything for a damaged file.

    A file that would unpack to more than it takes is refused: whoever made it made its digest, too.
    """
    _require_safe_torch()
    regular_file.checked(path, regular_file.LARGE)
    with zipfile.ZipFile(path) as packed:
        entries = packed.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its parts are compressed")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its parts overlap")
    state = torch.load(path, map_location="cpu", weights_only=True)
    _unwrapped(state, {})
    return state


@contextmanager
def limited_memory(most: int) -> Iterator[None]:
    """Lets this process allocate ``most`` bytes more; beyond that, allocations fail. All threads are limited alike."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + most if soft == resource.RLIM_INFINITY else min(soft, used + most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class _Dtype:
    """Replaces ``numpy.dtype``: a numeric type with its byte order."""

    def __init__(self, name: str, *_: object) -> None:
        self.dtype = np.dtype(str(name))
        if self.dtype.kind not in _KINDS:
            raise ValueError(f"an array of type {name} may hold objects")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Replaces ``numpy.ndarray``: a type, a shape and bytes."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        flat = np.frombuffer(data, kind.dtype)
        self.array = flat.reshape(shape, order="F" if is_fortran else "C").copy()


def _reconstruct(*_: object) -> _Array:
    """Replaces NumPy's function of this name, which makes an empty array to be filled."""
    return _Array()


def _scalar(kind: _Dtype, data: bytes) -> int | float | bool:
    """Replaces NumPy's function of this name: returns a single number."""
    value: int | float | bool = np.frombuffer(data, kind.dtype)[0].item()
    return value


_STAND_INS: list[Any] = [
    (_Dtype, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def _unwrapped(value: Any, known: dict[int, Any]) -> Any:
    """Returns a value with its arrays; what it holds several times is unwrapped once, as it may be nested in itself."""
    match value:
        case _Array():
            return value.array
        case torch.Tensor():
            return require_plain(value)
        case dict() | list() | tuple() if id(value) in known:
            return known[id(value)]
        case dict():
            found: dict[Any, Any] = {}
            known[id(value)] = found
            found.update({_unwrapped(key, known): _unwrapped(entry, known) for key, entry in value.items()})
            return found
        case list() | tuple():
            entries: list[Any] = []
            known[id(value)] = entries
            entries.extend(_unwrapped(entry, known) for entry in value)
            return entries
        case _:
            return value


def is_loaded(value: Any) -> bool:
    """Whether torch would load a value that is no tensor from a file, without running its code."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # what cannot be pickled raises nearly anything
        return False
    return True


def require_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Raises ValueError for a tensor that has more elements than bytes were stored for."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise ValueError("a tensor is not plain")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"a tensor of shape {list(tensor.shape)} has fewer elements than it claims")
    return tensor


def _require_safe_torch() -> None:
    """Raises ValueError before torch 2.6: ``weights_only`` gave no protection there (CVE-2025-32434)."""
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < (2, 6):
        raise ValueError(f"reading it safely needs torch 2.6 or newer; here is {torch.__version__}")
