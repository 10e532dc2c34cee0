"""``provenance.jsonl``: what each start of a run was made of, so that the run can be made again."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import digirl_dist
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.plain_text import without_secrets_in
from digirl_dist.settings import regular_file
from digirl_dist.settings.key_places import free_keys
from digirl_dist.settings.keys import flat
from digirl_dist.settings.safe_yaml import read_yaml
from digirl_dist.storage import atomic_files, json_lines, strict_json
from digirl_dist.storage.digest import digest
from digirl_dist.tasks import Task
from digirl_dist.types import Json

_EMULATOR = ("name", "id", "entry_point", "task", "observe", "touch", "image_size")
_FIXED = (
    "seed",
    "rollout_size",
    "agent",
    "train_algorithm",
    "algorithm.entry_point",
    *(f"emulator.{key}" for key in _EMULATOR),
)
"""A run whose tickets, weights or optimiser were made with other values of these is another run."""
_EXPERIMENT = (
    *("agent", "algorithm", "emulator", "judge", "max_steps", "offline", "predicate", "rollout_size", "seed"),
    *("start_from", "success", "task_mode", "task_order", "task_set", "train_algorithm", "train_mode"),
)
"""What somebody changes who tries something else; other keys say how, where and for how long."""
_MEASURED = (
    *("agent", "emulator", "judge", "max_steps", "predicate", "rollout_size", "seed", "success"),
    *("task_mode", "task_order", "task_set", "task_split", "tasks"),
)
"""What decides which episodes measure a checkpoint, and how they are acted and judged. Each mode has its own seeds, and
a file of tasks may have changed."""
_TOLD = 5
"""Changes that are told of many."""
_GIT_S = 10.0

Changes = dict[str, list[Json]]
"""Keys, each with the value before and the value now."""


def changes_of(run: Path, configuration: Mapping[str, Json]) -> Changes:
    """Returns what ``configuration`` has otherwise than the ``config.yaml`` of a run folder; none without it.

    Raises RunFolderError if that is damaged.
    """
    before = dict(flat(_configuration_of(run), whole=free_keys()))
    now = dict(flat(configuration, whole=free_keys()))
    return {key: [before[key], now[key]] for key in now if key in before and before[key] != now[key]}


def _configuration_of(run: Path) -> Mapping[str, Json]:
    path = run / "config.yaml"
    if not path.exists():
        return {}
    remedy = "restore it, or remove it to continue with the settings that are given now"
    try:
        found = read_yaml(path)
    except SettingsError as error:
        raise RunFolderError(f"{error}; {remedy}") from error
    if not isinstance(found, Mapping):
        raise RunFolderError(f"{path} holds no settings; {remedy}")
    return found


def is_experiment_of(run: Path, configuration: Mapping[str, Json]) -> bool:
    """Returns whether a run folder holds the experiment that the configuration describes."""
    return not any(key.split(".")[0] in _EXPERIMENT for key in changes_of(run, configuration))


def measured(configuration: Mapping[str, Json], tasks: Sequence[Task]) -> Mapping[str, Json]:
    """Returns what decides about the episodes that measure a checkpoint, by key."""
    told = {**configuration, "tasks": tasks_in_a_word(tasks)}
    decisive = {key: value for key, value in flat(told, whole=free_keys()) if key.split(".")[0] in _MEASURED}
    noted: Mapping[str, Json] = json.loads(strict_json.dumps(decisive))  # as it is read later
    return noted


def refuse_other_measurement(folder: Path, now: Mapping[str, Json], usual: Mapping[str, Json]) -> None:
    """Raises SettingsError, with both values, if the episodes in ``folder`` measure something else than ``now``.

    Without that, a measurement on another split would find the episodes of the first, and report those. A key that the
    note lacks had its default then, which ``usual`` has; one that there is no more decides nothing.
    """
    path = folder / "measurement.json"
    if not path.exists():
        return
    try:
        before = {**usual, **json.loads(regular_file.content(path))}
        key = next((key for key, value in now.items() if before.get(key, value) != value), None)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged; rename {folder}, and the checkpoint is measured anew") from error
    if key is not None:
        raise SettingsError(
            f"{key}={now[key]}, but {folder} measures this checkpoint with {key}={before[key]} -> rename that "
            f"folder to keep its episodes, and the checkpoint is measured anew; or leave {key} as it was"
        )


def note_measurement(folder: Path, now: Mapping[str, Json]) -> None:
    """Writes what the episodes in ``folder`` measure, unless it is written there."""
    if not (folder / "measurement.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(folder / "measurement.json", now)


def tasks_in_a_word(tasks: Sequence[Task]) -> str:
    """Returns what differs if the tasks do, such as after a change of their file."""
    return f"{len(tasks)} with digest {digest(repr(list(tasks)).encode())[:12]}"


def refuse_changes(run: Path, configuration: Mapping[str, Json]) -> None:
    """Raises SettingsError, with both values, for the changes that make the run in ``run`` another one."""
    changes = changes_of(run, configuration)
    fixed = [key for key in changes if any(key == one or key.startswith(f"{one}.") for one in _FIXED)]
    others = [key.removesuffix("name") for key in fixed if key.endswith(".name")]  # their other keys follow from that
    told = [key for key in fixed if key.endswith(".name") or not key.startswith(tuple(others))][:_TOLD]
    if told:
        before, now = (", ".join(f"{key}={changes[key][place]}" for key in told) for place in (0, 1))
        raise SettingsError(
            f"{now}, but the run in save_path={run} has {before} and continues with that alone -> "
            f"leave {', '.join(told)} as before, or use another save_path"
        )


def record_start(run: Path, changes: Changes) -> None:
    """Appends how this process was started to ``provenance.jsonl``.

    Raises RunFolderError if they cannot be written.
    """
    path = run / "provenance.jsonl"
    try:
        json_lines.append_object(path, _start(changes))
    except OSError as error:
        raise RunFolderError(f"{error.filename or path} cannot be written: {error.strerror}") from error


def _start(changes: Changes) -> Mapping[str, Json]:
    checkout = Path(digirl_dist.__file__).resolve().parent.parent
    return {
        "time": round(time.time(), 3),
        "version": digirl_dist.__version__,
        "package": _commit(checkout) if (checkout / ".git").exists() else None,
        "working_directory": {"path": os.getcwd(), **(_commit(Path.cwd()) or {})},
        "command": without_secrets_in(list(sys.argv)),
        "host": {"name": platform.node(), **machine_facts(), "gpus": _gpus()},
        "packages": {each.metadata["Name"]: each.version for each in metadata.distributions()},
        "changes": changes,
    }


def _commit(folder: Path) -> dict[str, Json] | None:
    """Returns the commit of the checkout around ``folder``, and whether it was changed since; None for no checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "uncommitted": bool(_git(folder, "diff", "HEAD", "--", "."))}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


class WorkerRecord:
    """Appends what each worker machine is made of to ``provenance.jsonl``, once and again whenever it has changed."""

    def __init__(self, run: Path) -> None:
        self._path = run / "provenance.jsonl"
        self._known: dict[str, Json] = {}

    def listen(self, kind: str, content: Mapping[str, Json]) -> None:
        """Takes in one event."""
        worker = str(content.get("worker"))
        if kind != "worker_machine" or self._known.get(worker) == content:
            return
        self._known[worker] = dict(content)
        with suppress(OSError):  # events.jsonl has it, too
            json_lines.append_object(self._path, {"time": round(time.time(), 3), **content})


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")  # whoever trains has it; nobody else needs to know
    if torch is None or not torch.cuda.is_available():  # devices are counted also where their driver is too old
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def machine_facts() -> dict[str, Any]:
    """Returns processor, cores, memory in bytes, system and Python of this machine; no names, addresses or paths."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "system": _system(),
        "python": platform.python_version(),
    }


def _system() -> str:
    """Returns system, release and C library; ``platform.platform`` would start a program to find them."""
    system, library = os.uname(), "".join(platform.libc_ver())
    return "-".join([system.sysname, system.release, system.machine, *(["with", library] if library else [])])


def dependency_versions() -> dict[str, str]:
    """Returns the versions of what this package depends on, as far as it is installed here."""
    try:
        required = metadata.requires("digirl_dist") or []
    except metadata.PackageNotFoundError:
        return {}
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in required}
    return {name: version for name in sorted(names) if (version := version_of(name))}


def version_of(package: str) -> str:
    """Returns the version of an installed package; empty for one that is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1][:200] if found else platform.machine()
