"""Packs the host's classes and settings for workers with cloudpickle, in one direction only: from host to worker.

Modules that are not installed (the user's own files) are packed by value, so that nobody copies
source code to machines manually. What their functions import when they run travels as source (``neighbours``). The
host never unpickles anything but its own files.
"""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import in_short
from digirl_dist.user_code.blame import is_users
from digirl_dist.user_code.neighbours import Source, make_importable, neighbours_of

_REGISTERED = threading.RLock()
"""Held while cloudpickle knows the user's modules, which it does for all threads."""


def pack(thing: Any) -> bytes:
    """Packs ``thing`` with all code that is not installed on workers.

    Raises SettingsError naming the file and the global of the user's that cannot be sent.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _with_its_file, functools._lru_cache_wrapper: _with_an_empty_cache},
            cloudpickle.Pickler.dispatch_table,
        )
        used: ClassVar[set[str]] = set()
        latest: ClassVar[list[Any]] = [None]

        def reducer_override(self, obj: Any) -> Any:
            self.latest[0] = obj
            if isinstance(obj, type | FunctionType):
                self.used.add(str(obj.__module__))
            if isinstance(obj, ctypes.CDLL):  # it would fail on the worker alone
                raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
            return super().reducer_override(obj)

    with _REGISTERED:
        modules = {module.__name__: module for module in _modules_of_the_user()}
        for module in modules.values():
            cloudpickle.register_pickle_by_value(module)
        packed = io.BytesIO()
        try:
            Pickler(packed).dump(thing)
        except (TypeError, ValueError, AttributeError, NotImplementedError, pickle.PicklingError) as error:
            raise SettingsError(_unpackable(Pickler.latest[0], modules.values(), error)) from error
        finally:
            for module in modules.values():
                cloudpickle.unregister_pickle_by_value(module)
    sources = neighbours_of(
        module for name, module in {**modules, "__main__": sys.modules["__main__"]}.items() if name in Pickler.used
    )
    return pickle.dumps(_Bundle(sources, packed.getvalue())) if sources else packed.getvalue()


class _Bundle:
    """Packed code and the sources that it imports; unpickling it gives what was packed."""

    def __init__(self, sources: dict[str, Source], packed: bytes) -> None:
        self._parts = (sources, packed)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unbundled, self._parts


def _unbundled(sources: dict[str, Source], packed: bytes) -> Any:
    make_importable(sources)
    return pickle.loads(packed)


def _with_an_empty_cache(function: Any) -> tuple[Any, ...]:
    """Reduces what ``functools.lru_cache`` made, which pickle takes for a name of an installed module."""
    parameters = function.cache_parameters()
    return _cached, (function.__wrapped__, parameters["maxsize"], parameters["typed"])


def _cached(function: Callable[..., Any], size: int | None, typed: bool) -> Any:
    return functools.lru_cache(size, typed)(function)


def _unpackable(part: Any, modules: Iterable[ModuleType], error: Exception) -> str:
    """Returns which part of the user's code cannot be sent to workers, where it is, and what to do."""
    kind = type(part).__name__
    for module in modules:
        for name, value in list(vars(module).items()):
            if any(each is part for each in (value, *_inside(value))):
                return (
                    f"{module.__file__}: its global {name}, with an object of type {kind}, cannot be sent to workers; "
                    "make it in __init__ of the class that uses it, or when a function first needs it"
                )
    return (
        f"an object of type {kind} cannot be sent to workers ({in_short(error)}): the emulator or the agent refers to "
        "it; make it in __init__ of the class that uses it"
    )


def _inside(value: Any) -> Iterator[Any]:
    """Yields the parts of a global: of a container its entries, of an object or a class its attributes."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif not isinstance(value, ModuleType):
        yield from getattr(value, "__dict__", {}).values()


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
