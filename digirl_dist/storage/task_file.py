"""Task sets from the user's own files: YAML, JSON, or one instruction per line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings import regular_file
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.safe_yaml import load_yaml
from digirl_dist.tasks import Task

_STRUCTURED = (".yaml", ".yml", ".json")
_LINES = (".txt",)
_KEYS = ("id", "instruction", "params", "split")
_SPLITS = ("train", "test")


def is_file(task_set: str) -> bool:
    """Returns whether ``task_set`` names a file rather than one of the emulator's own sets."""
    return Path(task_set).suffix in (*_STRUCTURED, *_LINES)


def from_file(
    task_set: str, split: str, known: Sequence[Task] = (), can_run: Callable[[Task], bool] = lambda _: True
) -> list[Task]:
    """Returns the tasks of ``split`` in a file, in its order. ``{split}`` in the name means ``train`` or ``test``.

    An entry that gives the id or the instruction of a ``known`` task means that task. Every other entry must satisfy
    ``can_run``: whether the emulator can run and judge it. Raises SettingsError naming the file and the entry.
    """
    path = expanded(task_set.replace("{split}", split), "task_set")
    found = [entry.task for entry in _entries(path) if entry.split in (None, split)]
    if not found:
        raise SettingsError(f"task_set {path} has no task of the split {split!r}")
    return [_resolved(task, known, can_run, path) for task in found]


@dataclass(frozen=True)
class _Entry:
    task: Task
    split: str | None


def _entries(path: Path) -> list[_Entry]:
    try:
        # Some editors begin a file with a mark of its order.
        text = regular_file.content(path, named=True).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"task_set {path} cannot be read: {regular_file.defect(error)}") from error
    if path.suffix in _LINES:
        lines = enumerate(map(str.strip, text.splitlines()), 1)
        return [_entry(line, number, None, path) for number, line in lines if line]
    content = load_yaml(text, f"task_set {path}")  # reads JSON as well
    if isinstance(content, dict):
        _refuse_unknown(content, _SPLITS, f"task_set {path}")
        parts: list[tuple[Any, str | None]] = [(content[name], name) for name in _SPLITS if content.get(name)]
    else:
        parts = [(content, None)]
    return [entry for part, split in parts for entry in _listed(part, split, path)]


def _listed(part: Any, split: str | None, path: Path) -> list[_Entry]:
    if not isinstance(part, list):
        raise SettingsError(f"task_set {path} must be a list of tasks, or a mapping with such lists as train and test")
    return [_entry(value, number, split, path) for number, value in enumerate(part, 1)]


def _entry(value: Any, number: int, split: str | None, path: Path) -> _Entry:
    """Reads one entry: an instruction, or a mapping with any of ``id instruction params split``."""
    where = f"task_set {path}, entry {number}"
    name = f"{path.stem}{f'-{split}' if split else ''}-{number:04d}"
    if isinstance(value, str):
        return _Entry(Task(name, value), split)
    if not isinstance(value, dict) or not (value.get("id") or value.get("instruction")):
        raise SettingsError(f"{where}: {value!r:.200} is neither an instruction nor a mapping with id or instruction")
    _refuse_unknown(value, _KEYS, where)
    kinds = {"id": str, "instruction": str, "params": dict, "split": str}
    for key, given in value.items():
        if not isinstance(given, kinds[key]):
            raise SettingsError(f"{where}: {key} must be a {kinds[key].__name__}, not {given!r:.200}")
    own = value.get("split", split)
    if own not in (None, *_SPLITS):
        raise SettingsError(f"{where}: there is no split {own!r}; there are {', '.join(_SPLITS)}")
    return _Entry(Task(value.get("id", name), value.get("instruction", ""), value.get("params", {})), own)


def _refuse_unknown(mapping: dict[Any, Any], known: Sequence[str], where: str) -> None:
    if unknown := [key for key in mapping if key not in known]:
        raise SettingsError(f"{where} has no key {unknown[0]!r:.200}; there are {', '.join(known)}")


def _resolved(task: Task, known: Sequence[Task], can_run: Callable[[Task], bool], path: Path) -> Task:
    """Returns the known task that an entry means, if any; the entry's own instruction and params take precedence."""
    meant = next((other for other in known if _means(task, other)), None)
    if meant is None:
        _refuse_what_cannot_run(task, known, can_run, path)
        return task
    own_words = task.instruction not in ("", meant.id, meant.instruction)
    found = replace(task if own_words else meant, params={**meant.params, **task.params})
    if task.params:
        _refuse_what_cannot_run(found, known, can_run, path)
    return found


def _refuse_what_cannot_run(task: Task, known: Sequence[Task], can_run: Callable[[Task], bool], path: Path) -> None:
    wanted = task.instruction or task.id
    try:
        fits = can_run(task)
    except SettingsError as error:
        raise SettingsError(f"task_set {path}: {wanted!r:.200}: {error}") from error
    if not fits:
        raise SettingsError(f"task_set {path}: {_unknown(wanted, known)}")


def _means(task: Task, other: Task) -> bool:
    same_words = bool(task.instruction) and task.instruction == other.instruction
    return same_words or other.id in (task.id, task.instruction)


def _unknown(wanted: str, known: Sequence[Task]) -> str:
    names = [name for other in known for name in (other.id, other.instruction)]
    near = difflib.get_close_matches(wanted, names, n=2)
    hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
    return (
        f"the emulator cannot run and judge {wanted!r}{hint}. Name one of its own tasks by id; where only the judging "
        "is missing, success=judge or success=predicate can do it"
    )
