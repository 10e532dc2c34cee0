"""Forges files in a worker's folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import EpisodeManifest, encode_manifest
from digirl_dist.storage import episode_file
from digirl_dist.storage.digest import file_digest
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

MARK = "forged"
"""The text of a forged observation, which must never appear in the store."""


def job_folder(jobs: Path) -> JobFolder | None:
    """Returns the folder of the run below ``jobs``, if it exists already."""
    found = [path for path in jobs.glob("*") if (path / "episodes").is_dir()]
    return JobFolder(found[0]) if found else None


def spoil_next(jobs: Path, change: Callable[[bytes], bytes], limit_s: float) -> str | None:
    """Changes the next finished episode; returns its id, or None if there was none within the limit."""
    folder = job_folder(jobs)
    if folder is None:
        return None
    old = set(folder.episodes.glob("*.json"))
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for manifest in set(folder.episodes.glob("*.json")) - old:
            file = folder.episode(manifest.stem)
            try:
                file.write_bytes(change(file.read_bytes()))
            except OSError:  # already fetched and deleted, or the disk is full
                return None
            return manifest.stem
        time.sleep(0.02)
    return None


def plant(jobs: Path, run: str | None = None, iteration: int = 0, cut: bool = False) -> bool:
    """Plants a complete episode with a manifest that the host must refuse: of another ``run`` or another iteration.

    ``cut``: writes only half of the manifest. Returns False if the folder is gone or its disk is full.
    """
    folder = job_folder(jobs)
    if folder is None:
        return False
    name = folder.root.name.split("-", 1)
    ticket = Ticket(iteration, 0, Task("rehearsal"), 0, iteration)
    episode_id = f"forged-{time.monotonic_ns()}"
    seen = Observation(MARK, None, np.zeros(4, np.float32))
    step = Step(seen, 0, -1.0, 1.0, terminated=True, truncated=False)
    path = folder.episode(episode_id)
    try:
        episode_file.write(path, Trajectory(ticket, episode_id, name[1], 0, [step], seen, success=True))
        manifest = _manifest(run or name[0], ticket, episode_id, path)
        text = encode_manifest(manifest).decode()
        part = folder.manifest(episode_id).with_suffix(".part")
        part.write_text(text[: len(text) // 2] if cut else text)
        os.replace(part, folder.manifest(episode_id))
    except OSError:  # the folder is gone, or its disk is full
        return False
    return True


def _manifest(run: str, ticket: Ticket, episode_id: str, path: Path) -> EpisodeManifest:
    return EpisodeManifest(
        run=run,
        key=ticket.key,
        attempt=0,
        policy_version=ticket.policy_version,
        episode_id=episode_id,
        size=path.stat().st_size,
        digest=file_digest(path),
        slot=0,
        seconds=0.1,
        age_s=0.0,
        spent={},
    )
