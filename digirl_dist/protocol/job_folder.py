"""The folder of one run on one worker.

The folder is the wire: everything that must survive a lost connection or a killed program is a file in it, and a
file appears by rename. An episode is ``episodes/ID.episode`` and then, last, its manifest ``episodes/ID.json``; it is
deleted only when the host has said that it landed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IS_TAKEN = 75
"""Exit status of a program that finds another one serving its folder: EX_TEMPFAIL of sysexits.h."""


def blob_name(digest: str) -> str:
    """Returns where something the host pushed lies, relative to the folder: a tensor, a packed factory."""
    return f"blobs/{digest}"


def episode_name(episode_id: str) -> str:
    """Returns where the rows of an episode lie, relative to the folder."""
    return f"episodes/{episode_id}.episode"


def _arguments(pid: int) -> Sequence[bytes]:
    """Returns the command line of a process: one empty word if it has none any more, or is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


@dataclass(frozen=True)
class JobFolder:
    """Names every file of a worker's folder."""

    root: Path

    socket = "control.sock"
    """Relative to ``root``, because the path of a Unix socket may have 107 bytes only."""

    @property
    def lock(self) -> Path:
        return self.root / "program.lock"

    @property
    def log(self) -> Path:
        return self.root / "program.log"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def episodes(self) -> Path:
        return self.root / "episodes"

    def blob(self, digest: str) -> Path:
        return self.root / blob_name(digest)

    def episode(self, episode_id: str) -> Path:
        return self.root / episode_name(episode_id)

    def manifest(self, episode_id: str) -> Path:
        return self.episodes / f"{episode_id}.json"

    def slot_log(self, slot: int) -> Path:
        return self.root / f"slot-{slot}.log"

    def program(self) -> int | None:
        """Returns the process id in the lock file, provided that it really is the program of this folder."""
        try:
            pid = int(self.lock.read_text())
        except (OSError, ValueError):
            return None
        return pid if self._is_program(_arguments(pid)) else None

    def has_ended(self, pid: int) -> bool:
        """Returns whether the program of this folder that had this process id has ended, its lock and socket with it.

        It needs no pidfd, which not every Python has. A process that is being killed loses its arguments first, then
        its files, and its last thread at the end.
        """
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            is_over = state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2
        except OSError:
            return True
        arguments = _arguments(pid)
        return is_over or (arguments != [b""] and not self._is_program(arguments))

    def _is_program(self, arguments: Sequence[bytes]) -> bool:
        return b"digirl_dist.worker_program.program" in arguments and os.fsencode(self.root) in arguments

    def remove(self) -> None:
        """Removes the folder, at once under its name: a successor may make a new one meanwhile."""
        gone = self.root.with_name(f".{self.root.name}-{os.getpid()}")
        try:
            self.root.rename(gone)
        except OSError:
            gone = self.root
        shutil.rmtree(gone, ignore_errors=True)

    def create(self) -> None:
        for folder in (self.root, self.blobs, self.episodes):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
