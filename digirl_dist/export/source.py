"""What is exported: a run's training episodes, one after the other, and what may be told of how they were made."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from digirl_dist.errors import RunFolderError, TrajectoryError
from digirl_dist.judge import with_verdict
from digirl_dist.plain_text import without_secrets_in
from digirl_dist.report.metrics import lines_of
from digirl_dist.rollout.rollout import episode_id
from digirl_dist.storage import json_lines, parquet
from digirl_dist.storage.run_folder import config_of, existing_run, run_id_of
from digirl_dist.storage.status import Status
from digirl_dist.storage.verdicts import LaterVerdict
from digirl_dist.storage.verdicts import read as read_verdicts
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_TOLD = (
    "train_algorithm",
    "train_mode",
    "train_iterations",
    "rollout_size",
    "seed",
    "max_steps",
    "task_set",
    "success",
)
_MACHINE = ("cpu", "cores", "memory_bytes", "system", "python", "gpus")


class Source:
    """A run folder. Machines have numbers in place of names, and no path, address or login is told."""

    def __init__(self, folder: Path, verdicts: str | None = None, status: Status | None = None) -> None:
        """``verdicts``: the name of those that stand in place of the episodes' own; ``status`` shows how far it is.

        Raises RunFolderError for a folder in which no run began, or without such verdicts.
        """
        self.folder = existing_run(folder)
        self.config = config_of(self.folder)
        if not self.config:
            raise RunFolderError(f"{self.folder / 'config.yaml'} holds no settings; restore it")
        self.name = self.folder.resolve().name
        self._workers: dict[str, str] = {}
        self._verdicts = None if verdicts is None else read_verdicts(self.folder, verdicts)
        self._status = status or Status()

    @property
    def run_id(self) -> str:
        return run_id_of(self.folder) or self.name

    def chosen(self, group: str) -> Json:
        """Returns the name of the option that was chosen in a group of settings."""
        part = self.config.get(group)
        return part.get("name") if isinstance(part, Mapping) else part

    def figures(self) -> list[dict[str, Json]]:
        """Returns the figures of each iteration."""
        return lines_of(self.folder / "metrics.jsonl")

    @cached_property
    def files(self) -> list[Path]:
        """The files of the finished iterations, in order. Raises TrajectoryError if there is none."""
        found = sorted((self.folder / "trajectories").glob("[0-9]*.parquet"))
        if not found:
            raise TrajectoryError(f"{self.folder} has no training episodes of a finished iteration to export")
        return found

    def episodes(self, file: Path) -> Iterator[Trajectory]:
        """Yields the episodes of a file; the memory that this takes does not grow with their number."""
        self._status.part = bisect_left(self.files, file), len(self.files)
        for episode in parquet.stream(file):
            if self._verdicts is not None:
                episode = self._regraded(episode, self._verdicts)
            number = self._workers.setdefault(episode.worker, f"worker-{len(self._workers) + 1}")
            yield replace(episode, worker=number, episode_id=episode_id(episode.ticket, number, episode.slot))

    def _regraded(self, episode: Trajectory, verdicts: Mapping[str, LaterVerdict]) -> Trajectory:
        key = episode.ticket.key.name
        if key not in verdicts:
            raise RunFolderError(
                f"episode {key} has no such verdict: `digirl-dist regrade {self.folder}` judges the rest"
            )
        return with_verdict(episode, verdicts[key].score)

    def settings(self) -> dict[str, Json]:
        """Returns the settings that say what was learned and how, without those of machines and files."""
        algorithm = self.config.get("algorithm")
        named = algorithm.get(str(self.config.get("train_algorithm"))) if isinstance(algorithm, Mapping) else None
        groups = {"agent": self.config.get("agent"), "emulator": self.config.get("emulator"), "algorithm": named}
        told = _without_paths({key: self.config.get(key) for key in _TOLD} | groups)
        hidden: dict[str, Json] = without_secrets_in(told)
        return hidden

    def machines(self) -> list[dict[str, Json]]:
        """Returns the version and the machines of each start, and those of the workers."""
        lines = json_lines.read(self.folder / "provenance.jsonl")
        starts = [{"version": each.get("version"), **_machine(each.get("host"))} for each in lines if "host" in each]
        return [*starts, *({"worker": True, **_machine(each)} for each in lines if "worker" in each)]


def _machine(facts: Json) -> dict[str, Json]:
    return {key: facts[key] for key in _MACHINE if facts.get(key)} if isinstance(facts, Mapping) else {}


def _without_paths(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if isinstance(value, str) and (value.startswith(("/", "~", ".")) or "://" in value or "@" in value):
        return re.sub(r"(?s)^.*://[^/]*|[^/]*@[^/]*$", "", value.rstrip("/")).rsplit("/", 1)[-1]
    return value
