"""The emulators that ``emulator=NAME`` chooses: one file each, with its settings and how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import SettingsError
from digirl_dist.settings.plugins import EmulatorSettings
from digirl_dist.settings.workers import InstallSettings
from digirl_dist.tasks import Task


@dataclass(frozen=True)
class Device:
    """Everything there is to know of a chosen emulator."""

    factory: EmulatorFactory
    spec: EmulatorSpec
    tasks: Sequence[Task] = ()
    max_steps: int | None = None
    """Longest episode, unless the user says otherwise; None: as the emulator ends them."""
    extras: tuple[str, ...] = ()
    """Optional parts of the package that a worker needs for it and the agent."""
    needs: Needs = TYPICAL
    """What one of these emulators takes of a machine, for ``bsize: auto``."""
    guard: EpisodeGuard = field(default_factory=EpisodeGuard)
    """Checks episodes before they are stored."""


@dataclass
class EmulatorPlugin(EmulatorSettings, ABC):
    """Settings of an emulator, which build it."""

    browser: ClassVar[bool] = False
    """Whether it needs Chromium on the machine."""
    starts_at_once: ClassVar[bool] = False
    """Whether it starts within seconds, so that ``doctor`` always tries it."""
    machine: ClassVar[str | None] = None
    """The name of the scripts in ``worker/`` that prepare a machine for it; None: its own name."""

    @property
    def tells_success(self) -> bool:
        """Whether an episode's success means something even where all episodes are alike in it."""
        return True

    @abstractmethod
    def build(self) -> Device:
        """The emulator, without tasks. Raises SettingsError before anything is made."""

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        """A task set of the emulator's own; ``split`` is train or test. Raises SettingsError naming those there are."""
        if task_set != "default":
            raise SettingsError(
                f"emulator={self.name} has no task set {task_set!r}, only default; files end with .yaml, .json or .txt"
            )
        return self.default_tasks(split)

    def default_tasks(self, split: str) -> Sequence[Task]:
        """Those of an emulator with one set."""
        return ()

    def known_tasks(self, split: str) -> Sequence[Task]:
        """The tasks that a file of the user's may name."""
        return ()

    def can_run(self, task: Task, judged_elsewhere: bool) -> bool:
        """Whether a task of a file that is not known can be run and judged; with ``judged_elsewhere`` run is enough.

        Raises SettingsError where it can say what is wrong.
        """
        return True

    def setup_variables(self, install: InstallSettings) -> Mapping[str, str | None]:
        """What the scripts in ``worker/`` are told; None is left out."""
        return {}
