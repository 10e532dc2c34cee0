"""Checks the host itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from digirl_dist.doctor import judgement, probe
from digirl_dist.doctor.check import HOST, Check
from digirl_dist.doctor.requirements import MachineRequirements
from digirl_dist.exit_status import interruptions_wait
from digirl_dist.settings import Settings
from digirl_dist.storage.file_system import free, nearest

_ROOM_MB = 2000
_ROOM_FILES = 1000


def examine_host(settings: Settings) -> Iterator[Check]:
    yield _disk(Path(settings.save_path).expanduser().absolute())
    yield _torch()


def examine_emulators(settings: Settings, requirements: MachineRequirements) -> Iterator[Check]:
    """Yields the checks for a run whose emulators run on this machine."""
    android = None if requirements.android is None else asdict(requirements.android)
    slots = settings.bsize if isinstance(settings.bsize, int) else 1  # auto: whatever fits, but one must
    facts = probe.look(probe.ProbeRequest({}, [], requirements.browser, android, slots))
    yield from judgement.judge(HOST, facts, requirements, slots, settings.worker_torch_threads)


def _disk(folder: Path) -> Check:
    free_bytes, free_files = free(folder)
    detail = f"{free_bytes / 2**30:.1f} GB free at {folder}"
    remedy = f"free {_ROOM_MB / 1000:g} GB there, or set save_path to a larger disk"
    place = nearest(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        detail, remedy = f"{folder}: this user cannot write to {place}", "set save_path to a folder that you can write"
    elif free_files is not None and free_files < _ROOM_FILES:
        detail += f", but only {free_files} files (inodes), and {_ROOM_FILES} are needed"
        remedy = "delete files there, or set save_path to another disk"
    else:
        return Check(HOST, "disk save_path", free_bytes >> 20 >= _ROOM_MB, detail, remedy)
    return Check(HOST, "disk save_path", False, detail, remedy)


def _torch() -> Check:
    try:
        with interruptions_wait():
            import torch
    except ImportError as error:
        return Check(HOST, "torch", False, f"cannot be imported: {error}", "pip install torch on the host")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check(HOST, "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {device}")
