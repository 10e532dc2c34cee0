"""Packs the host's classes and settings for workers with cloudpickle, in one direction only: from host to worker.

Modules that are not installed (the user's own files beside ``run.py``) are packed by value, so that nobody copies
source code to machines by hand. The host never unpickles anything but its own files.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

from digirl_dist.user_code.blame import is_users


def pack(thing: Any) -> bytes:
    """Packs ``thing`` with all code that is not installed on workers."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _with_its_file}, cloudpickle.Pickler.dispatch_table)

    modules = list(_modules_of_the_user())
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    packed = io.BytesIO()
    try:
        Pickler(packed).dump(thing)
        return packed.getvalue()
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _with_its_file(code: CodeType) -> tuple[Any, ...]:
    """Reduces code as cloudpickle does, which since 3.1.3 leaves out the file that errors name."""
    import cloudpickle

    kind, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return kind, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def unpack(packed: bytes) -> Any:
    """Inverts ``pack``. Must only be called on bytes from the host."""
    return pickle.loads(packed)


def unpack_file(path: str | Path) -> Any:
    """Unpacks a file. Must only be called on files from the host."""
    return unpack(Path(path).read_bytes())


def _modules_of_the_user() -> Iterator[ModuleType]:
    """Yields the loaded modules whose source is neither installed nor part of Python or of this package."""
    for name, module in list(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if name == "__main__" or source is None or not isinstance(module, ModuleType):
            continue
        if is_users(source):
            yield module
