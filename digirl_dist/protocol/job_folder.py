"""The folder of one run on one worker, and the lines that host and worker program exchange about it.

The folder is the wire: everything that must survive a lost connection or a killed program is a file in it, and a
file appears by rename. An episode is ``episodes/ID.parquet`` and then, last, its manifest ``episodes/ID.json``; it is
deleted only when the host has said that it landed.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from digirl_dist.errors import TrajectoryError
from digirl_dist.types import Json

PROTOCOL = 3
"""Raised when the lines below change their meaning."""

_EPISODE_ID = re.compile(r"[A-Za-z0-9._-]{1,160}")


def blob_name(digest: str) -> str:
    """Where something the host pushed lies, relative to the folder: a tensor, a packed factory."""
    return f"blobs/{digest}"


def episode_name(episode_id: str) -> str:
    """Where the rows of an episode lie, relative to the folder."""
    return f"episodes/{episode_id}.parquet"


def notice_name(episode_id: str) -> str:
    """Where the manifest of an episode lies, relative to the folder."""
    return f"episodes/{episode_id}.json"


@dataclass(frozen=True)
class JobFolder:
    """Names every file of a worker's folder."""

    root: Path

    @property
    def socket(self) -> str:
        """Relative to ``root``, because the path of a Unix socket may have 107 bytes only."""
        return "control.sock"

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
        return self.root / notice_name(episode_id)

    def slot_log(self, slot: int) -> Path:
        return self.root / f"slot-{slot}.log"

    def program(self) -> int | None:
        """The process id in the lock file, provided that it really is the program of this folder."""
        try:
            pid = int(self.lock.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        ours = b"digirl_dist.worker_program.program" in arguments and str(self.root).encode() in arguments
        return pid if ours else None

    def create(self) -> None:
        for folder in (self.root, self.blobs, self.episodes):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class EpisodeManifest:
    """What a worker says of an episode that lies ready in its folder.

    ``seconds`` is how long the episode took, ``age_s`` how long ago it ended when this was written or sent;
    ``spent`` are its seconds by phase. No clock of another machine is ever compared with ours.
    """

    run: str
    iteration: int
    index: int
    attempt: int
    policy_version: int
    episode_id: str
    size: int
    digest: str
    slot: int
    seconds: float
    age_s: float
    spent: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> EpisodeManifest:
        """Checks every field, because it came from another machine. Raises TrajectoryError."""
        kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "dict[str, float]": dict}
        known = {entry.name: kinds[str(entry.type)] for entry in fields(cls)}
        if not isinstance(value, dict) or set(value) != set(known):
            raise TrajectoryError(f"{value!r} is not an episode's manifest")
        for name, kind in known.items():
            if isinstance(value[name], bool) or not isinstance(value[name], kind):
                raise TrajectoryError(f"an episode's manifest has a wrong {name}: {value[name]!r}")
        if not all(type(seconds) in (int, float) for seconds in value["spent"].values()):
            raise TrajectoryError(f"an episode's manifest has a wrong spent: {value['spent']!r}")
        if not _EPISODE_ID.fullmatch(value["episode_id"]):
            raise TrajectoryError(f"an episode's manifest has a wrong episode_id: {value['episode_id']!r}")
        return cls(**value)


def encode(kind: str, attached: bytes = b"", **content: Json) -> bytes:
    """One message of the control channel: a line, and right behind it as many bytes as its ``attached`` says."""
    size = {"attached": len(attached)} if attached else {}
    return json.dumps({"type": kind, **content, **size}, separators=(",", ":")).encode() + b"\n" + attached


def decode(line: bytes) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object with a ``type``."""
    value = json.loads(line)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ValueError(f"not a message: {line[:200]!r}")
    return value
