"""Keys that are paths on this machine, marked in their types, and what is refused of them before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import is_unicode
from digirl_dist.settings.keys import keys_of

_READS = {True: os.R_OK | os.X_OK, False: os.R_OK}


class PathUse(Enum):
    """What a path is for."""

    output_folder = "output_folder"
    """Made if it is missing, and written to."""
    folder = "folder"
    """Read; must be there."""
    file = "file"
    """Read; must be there."""
    either = "either"
    """A file or a folder that is read; must be there."""
    elsewhere = "elsewhere"
    """On workers, or a name as well; looked at by those who use it."""


@dataclass(frozen=True)
class OnEmulators:
    """Marks a path of the machines with emulators, which may be this one."""

    use: PathUse


OutputFolder = Annotated[str, PathUse.output_folder]
Folder = Annotated[str, PathUse.folder]
FilePath = Annotated[str, PathUse.file]
Input = Annotated[str, PathUse.either]
Elsewhere = Annotated[str, PathUse.elsewhere]
EmulatorOutput = Annotated[str, OnEmulators(PathUse.output_folder)]
EmulatorFolder = Annotated[str, OnEmulators(PathUse.folder)]


def refuse_bad_paths(settings: Any, emulators_here: bool, prefix: str = "") -> None:
    """Raises SettingsError naming the first path of ``settings``, a dataclass, that cannot be used as it is meant."""
    for key in keys_of(settings, prefix):
        for use in uses_of(key.hint):
            if isinstance(use, OnEmulators):
                use = use.use if emulators_here else PathUse.elsewhere
            for value in key.value if isinstance(key.value, list) else [key.value]:
                if isinstance(value, str) and value != "???":
                    _refuse(key.name, value, use)


def refuse_unwritable(name: str, path: Path, use: PathUse) -> None:
    """Raises SettingsError, which calls it ``name``, if neither the folder ``path`` nor a file there can be written."""
    if use is PathUse.file and path.is_dir():
        raise SettingsError(f"{name}={path} is a folder: name a file in it")
    _refuse(name, str(path.parent if use is PathUse.file else path), PathUse.output_folder)


def expanded(text: str | os.PathLike[str], name: str = "") -> Path:
    """Returns a path with ``~`` expanded. Raises SettingsError, which may call it ``name``, for an unknown user's."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{name and f'{name}='}{path}: {error} Write the whole path") from error


def uses_of(hint: Any) -> Iterator[PathUse | OnEmulators]:
    """Yields what the paths in a type are for."""
    if get_origin(hint) is Annotated:
        yield from (each for each in get_args(hint)[1:] if isinstance(each, PathUse | OnEmulators))
        hint = get_args(hint)[0]
    for each in get_args(hint):
        yield from uses_of(each)


def _refuse(key: str, value: str, use: PathUse) -> None:
    try:
        defect = _defect(value, use)
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL, a loop of links, an unknown ~user
        defect = f"cannot be used ({error})"
    if defect:
        raise SettingsError(f"{key}={value[:300]} {defect[:500]}".replace("\0", "\\0"))


def _defect(value: str, use: PathUse) -> str:
    """Returns what is wrong with a path, and the remedy; empty if nothing is."""
    if not value or "\0" in value:
        return "is no path: name one"
    if use is PathUse.elsewhere:
        return ""
    path = Path(value).expanduser()
    if use is PathUse.output_folder:
        return _cannot_be_made(path.absolute())
    if not path.exists():
        return f"is not there: correct it, or put {'a file' if use is PathUse.file else 'it'} there"
    if path.is_dir() and use is PathUse.file:
        return "is a folder: name a file in it"
    if not path.is_dir() and use is PathUse.folder:
        return "is no folder: name the one that it is in, or another"
    return "" if os.access(path, _READS[path.is_dir()]) else "cannot be read by this user: allow it, or name another"


def _cannot_be_made(path: Path) -> str:
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not there.is_dir():
        return f"cannot be a folder: {there} is there and is none; name another"
    if not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc") or there.is_relative_to("/sys"):
        return f"cannot be written: {there} is not for this user; allow it, or name another folder"
    if any(len(os.fsencode(part)) > os.pathconf(there, "PC_NAME_MAX") for part in path.relative_to(there).parts):
        return "has a name that is too long: name another folder"
    if not is_unicode(str(path)):
        return "is no UTF-8, and Arrow and safetensors write no other: name another folder, or set LC_ALL=C.UTF-8"
    return ""
