"""How the host's classes and settings reach a worker: cloudpickle, one way only, host to worker.

Modules that are not installed (the user's own files beside ``run.py``) travel by value, so that nobody copies
source code to machines by hand. The host never unpickles anything but its own files.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import digirl_dist


def pack(thing: Any) -> bytes:
    """``thing`` with everything that a worker does not have by installation."""
    import cloudpickle

    modules = list(_modules_of_the_user())
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(thing))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def carries_user_code(packed: bytes) -> bool:
    """True if classes travel by value, which binds the worker to the host's minor version of Python."""
    return b"_make_skeleton_class" in packed or b"_make_function" in packed


def unpack(packed: bytes) -> Any:
    """The inverse of ``pack``. Only ever called on what came from the host."""
    return pickle.loads(packed)


def unpack_file(path: str | Path) -> Any:
    """Load what ``pack`` wrote. Only ever called on files that came from the host."""
    return unpack(Path(path).read_bytes())


def _modules_of_the_user() -> Iterator[ModuleType]:
    """Loaded modules whose source is neither installed nor part of Python or of this package."""
    paths = {*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix, os.path.dirname(digirl_dist.__file__)}
    roots = tuple(os.path.join(os.path.realpath(path), "") for path in paths)

    @functools.cache  # thousands of modules lie in hundreds of folders
    def is_users(folder: str) -> bool:
        return not os.path.join(os.path.realpath(folder), "").startswith(roots)

    for name, module in list(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if name == "__main__" or source is None or not isinstance(module, ModuleType):
            continue
        if is_users(os.path.dirname(source)):
            yield module
