"""Checks the host itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from digirl_dist.doctor import judgement, probe
from digirl_dist.doctor.check import HOST, Check
from digirl_dist.doctor.requirements import MachineRequirements
from digirl_dist.exit_status import interruptions_wait
from digirl_dist.settings import Settings

_ROOM_MB = 2000


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
    place = next(each for each in (folder, *folder.parents) if each.exists())
    free_mb = shutil.disk_usage(place).free >> 20
    detail = f"{free_mb / 1024:.1f} GB free at {folder}"
    remedy = f"free {_ROOM_MB / 1000:g} GB there, or set save_path to a larger disk"
    return Check(HOST, "disk save_path", free_mb >= _ROOM_MB, detail, remedy)


def _torch() -> Check:
    try:
        with interruptions_wait():
            import torch
    except ImportError as error:
        return Check(HOST, "torch", False, f"cannot be imported: {error}", "pip install torch on the host")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check(HOST, "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {device}")
