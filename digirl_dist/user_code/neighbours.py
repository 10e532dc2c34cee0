"""Files of the user's that code imports only when it runs: finds them on the host, and imports them on a worker."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from digirl_dist.user_code.blame import is_users

_MOST_BYTES = 4 << 20
"""Of all sources together; beyond that the import names what is missing on the worker."""


class Source(NamedTuple):
    """A module's file on the host, its content, and whether it is a package."""

    path: str
    content: bytes
    is_package: bool


def neighbours_of(modules: Iterable[ModuleType]) -> dict[str, Source]:
    """Returns, by name, the user's modules that functions of ``modules`` import, and all that those import."""
    found: dict[str, Source] = {}
    waiting = [
        name
        for module in modules
        for name in _imports(_content(getattr(module, "__file__", None)), inside_functions=True)
    ]
    while waiting:
        name = waiting.pop()
        source = None if name in found else _source(name)
        if source is not None and sum(len(each.content) for each in found.values()) < _MOST_BYTES:
            found[name] = source
            above = name.rpartition(".")[0]
            waiting += [above, *_imports(source.content, package=name if source.is_package else above)]
    return found


def make_importable(sources: Mapping[str, Source]) -> None:
    """Has this process import modules from these sources where it finds no others. Later ones replace earlier ones."""
    finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
    if finder is None:
        sys.meta_path.append(finder := _Finder())
    for name in sources.keys() & finder.sources.keys():
        if finder.sources[name] != sources[name]:
            sys.modules.pop(name, None)
    finder.sources.update(sources)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        source = self.sources[name]
        return importlib.util.spec_from_loader(name, _Loader(source), origin=source.path, is_package=source.is_package)


class _Loader(Loader):
    def __init__(self, source: Source) -> None:
        self._source = source

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._source.path
        exec(compile(self._source.content, self._source.path, "exec"), module.__dict__)


def _content(path: str | None) -> bytes:
    try:
        return Path(path or "").read_bytes()
    except OSError:
        return b""


def _source(name: str) -> Source | None:
    """Returns the source of a module that is the user's; None for others, and for what cannot be found."""
    try:
        spec = importlib.util.find_spec(name) if name else None
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py") or not is_users(spec.origin):
        return None
    return Source(spec.origin, _content(spec.origin), spec.submodule_search_locations is not None)


def _imports(content: bytes, inside_functions: bool = False, package: str = "") -> Iterator[str]:
    """Yields the names of modules that a source imports, or may: ``from a import b`` means a and maybe a.b."""
    with suppress(SyntaxError, ValueError, RecursionError):
        tree = ast.parse(content)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for place in functions if inside_functions else [tree]:
            for node in ast.walk(place):
                yield from _named(node, package)


def _named(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module, names, level):
            above = package.split(".")[: len(package.split(".")) + 1 - level] if level else []
            base = ".".join([*above, *([module] if module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in names)
