"""``emulator=rehearsal``: no device, but as slow and as unreliable as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from digirl_dist.capacity import Needs
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.paths import EmulatorOutput
from digirl_dist.settings.ranges import Amount, NoOrImageSize, Pause, Share, Sigma, Steps
from digirl_dist.tasks import Task


@dataclass
class RehearsalSettings(EmulatorPlugin):
    """No device: takes as long, and fails as often, as said here. Times are seconds."""

    name: str = "rehearsal"
    boot_s: Pause = 0.0
    """Start of the emulator."""
    reset_s: Pause = 2.0
    """Median of the log-normal time of a reset …"""
    reset_sigma: Sigma = 0.4
    """… and the standard deviation of its logarithm (0: always the median)."""
    step_s: Pause = 1.0
    """The same for a step …"""
    step_sigma: Sigma = 0.4
    """Spread of the duration of a step: the standard deviation of its logarithm."""
    steps: Steps = 10.0
    """… and for the number of steps of an episode."""
    steps_sigma: Sigma = 0.3
    """Spread of the number of steps: the standard deviation of its logarithm."""
    slowness: Amount = 1.0
    """Multiplies all times. For one slow machine: ``worker_ips: [{host: …, emulator: {slowness: 4}}]``."""
    hang_rate: Share = 0.0
    """Chance that a step never answers, …"""
    crash_rate: Share = 0.0
    """… that it ends the emulator's process, …"""
    error_rate: Share = 0.0
    """… that it raises an error."""
    faults_once_in: EmulatorOutput | None = None
    """A folder on the worker. With it, faults follow from task and seed and each strikes once, so that a rehearsal can
    be repeated (with the folder removed); without it, they are random."""
    image_size: NoOrImageSize = field(default_factory=list)
    """Height and width of a screenshot of noise; empty: none."""

    def build(self) -> Device:
        from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec

        return Device(partial(RehearsalEmulator, self), rehearsal_spec(self), needs=Needs(60, 0.05))

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.rehearsal import rehearsal_tasks

        return rehearsal_tasks()
