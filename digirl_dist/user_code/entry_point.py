"""Finds the object named ``my_file:MyThing`` in a module that is installed or lies in the working directory."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from digirl_dist.errors import DigirlDistError, SettingsError, StateError
from digirl_dist.plain_text import as_entry_point
from digirl_dist.user_code.blame import RAISED, blaming, described

_GIVEN = {
    "agent.entry_point": "the emulator's spec and agent.kwargs",
    "algorithm.entry_point": "the agent, peers=…, seed=… and algorithm.kwargs",
    "emulator.entry_point": "emulator.kwargs",
    "predicate": "a Trajectory",
    "algorithm.hindsight.achieved": "a Trajectory",
    "algorithm.digirl.advantage": "rewards and values",
}


def import_module(name: str) -> ModuleType:
    """Imports an installed module or a file of the working directory. Raises SettingsError with the reason.

    With ``PYTHONSAFEPATH`` set, as for Python itself, the working directory is left out.
    """
    if "/" in name or name.startswith("."):
        raise SettingsError(
            f"{name!r} is no name of a module: write my_file for a my_file.py in the working directory or on "
            "PYTHONPATH, folder.my_file for one in a folder there"
        )
    here, is_safe = os.getcwd(), bool(os.environ.get("PYTHONSAFEPATH"))
    if here not in sys.path and not is_safe:
        # Permanently: the user's code may import its neighbours later, when it runs.
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except RAISED as exc:
        where = "unless it is installed or on PYTHONPATH" if is_safe else f"from {here}"
        raise SettingsError(f"module {name!r} cannot be imported {where}: {type(exc).__name__}: {exc}") from exc


def load_callable(entry_point: str, key: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns the class or function of that name. Raises SettingsError also if it cannot be called with these."""
    found = load_entry_point(entry_point, key)
    refuse_uncallable(f"{key}={entry_point} is called with {_GIVEN[key]}, and cannot be", found, arguments, named)
    return found


def refuse_uncallable(
    said: str, found: Any, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
) -> None:
    """Raises SettingsError beginning with ``said`` for a class or function that does not take these arguments."""
    try:
        inspect.signature(found).bind(*arguments, **named or {})
    except TypeError as exc:
        raise SettingsError(f"{said}: {exc}") from exc
    except ValueError:  # some classes of C tell no signature
        pass


def parameters_of(found: Any) -> Sequence[str]:
    """Returns the names of what a class or function takes; nothing for one of C that tells no signature."""
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []


def lacking(found: Any, protocol: type, needed: Sequence[str]) -> str:
    """Returns the members of a protocol that a class or an object lacks, as they are written; empty for none."""
    return " and ".join(_as_written(protocol, name) for name in needed if not hasattr(found, name))


def _as_written(protocol: type, name: str) -> str:
    """Returns ``step(action: Json) -> Transition`` for a method, ``spec: EmulatorSpec`` for an attribute."""
    member = inspect.getattr_static(protocol, name, None)
    if isinstance(member, property):
        return f"{name}: {inspect.get_annotations(member.fget)['return']}"  # type: ignore[arg-type]
    if member is None:
        return f"{name}: {inspect.get_annotations(protocol)[name]}"
    signature = str(inspect.signature(getattr(protocol, name)))
    return name + re.sub(r"'|self, |self(?=\))", "", signature)


def derives_from(kind: Any, package: str) -> bool:
    """Returns whether a class has a class of a package among its bases; imports nothing."""
    return any(base.__module__.partition(".")[0] == package for base in getattr(kind, "__mro__", ()))


def construct(kind: Any, protocol: type, needed: Sequence[str], /, *arguments: Any, **named: Any) -> Any:
    """Returns what a class of the user's makes. Raises SettingsError with its line that raised, or what it lacks of
    the protocol."""
    name = getattr(kind, "__name__", str(kind))
    with blaming(name, SettingsError):
        made = kind(*arguments, **named)
    if lacks := lacking(made, protocol, needed):
        raise SettingsError(f"{name} makes a {type(made).__name__}, which lacks {lacks}")
    return made


def load_entry_point(entry_point: str, key: str) -> Any:
    """Returns the object named ``module:name``, the value of ``key``. Raises SettingsError naming what is wrong."""
    module_name, colon, name = entry_point.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        raise SettingsError(
            f"{key}={entry_point} names a file: write its module, as {key}={as_entry_point(entry_point)}"
        )
    if not (module_name and colon and name):
        raise SettingsError(f"{key}={entry_point} must read module:name, as in {key}=my_file:Mine")
    try:
        module = import_module(module_name)
    except SettingsError as error:
        raise SettingsError(f"{key}={entry_point}: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError as exc:
        raise SettingsError(f"{key}={entry_point}: {module.__file__} defines no {name}") from exc


def saved_state(part: Any) -> Any:
    """Returns what ``state_dict`` of an agent or algorithm returns. Raises StateError with the line that raised."""
    with blaming(f"{type(part).__name__}.state_dict", StateError):
        return part.state_dict()


def load_state(part: Any, state: Any) -> None:
    """Has an agent or algorithm load its state. Raises StateError if it cannot, for whatever reason."""
    try:
        part.load_state_dict(state)
    except (DigirlDistError, MemoryError):
        raise
    except RAISED as error:
        raise StateError(f"{type(part).__name__}.load_state_dict: {described(error)}") from error
