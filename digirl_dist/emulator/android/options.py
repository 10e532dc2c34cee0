"""How Android devices are reached and used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from digirl_dist.settings.expert import expert
from digirl_dist.settings.paths import EmulatorFolder, EmulatorOutput
from digirl_dist.settings.ranges import Few, ImageSize, Pause, Port, Quality, Seconds


@dataclass
class AndroidOptions:
    """Paths are those of the worker; null stands for the usual places."""

    avd: str | None = None
    """Each slot starts a ``-read-only`` instance of this AVD. Give this or ``serials``."""
    serials: list[str] = field(default_factory=list)
    """Running devices, one per slot: ``10.0.0.7:5555`` by network, or a USB serial (see adb_server)."""
    adb_server: str | None = expert(None)
    """For ``serials``: host:port of a running adb server. Null: each slot has its own, which ends with it."""
    sdk_path: EmulatorFolder | None = None
    """Android SDK with ``emulator/emulator``; null: ANDROID_HOME, ANDROID_SDK_ROOT, ~/Android/Sdk …"""
    avd_home: EmulatorFolder | None = None
    """Folder with the AVDs; null: ANDROID_AVD_HOME, else ~/.android/avd."""
    emulator_args: list[str] = expert(["-gpu", "swiftshader_indirect"])
    """Further arguments of the emulator program."""
    first_port: Port = expert(5600)
    """First port; each instance takes a pair. Not the usual 5554: any adb server on the machine claims those."""
    snapshot: str | None = "digirl"
    """Snapshot in which the AVD starts and to which each reset returns; null: each reset restarts the AVD."""
    boots_at_once: Few = expert(2)
    """Instances that may boot at the same time on one machine; the others wait for up to 10 minutes."""
    boot_s: Seconds = expert(240.0)
    """Longest start of one instance, until ``sys.boot_completed``; also the longest absence of a device by serial."""
    settle_s: Pause = expert(5.0)
    """Longest wait for a screen to settle; then it is taken as it is."""
    masked: list[Any] = expert([[0.0, 0.0, 1.0, 0.04]])
    """Parts of the screen that may change while it counts as settled (clock and battery): [left, top, right, bottom] as
    shares of the screen."""
    image_size: ImageSize = field(default_factory=lambda: [800, 360])
    """Height and width to which screenshots are scaled for the agent and the trajectories."""
    jpeg_quality: Quality | None = expert(None)
    """Store screenshots as JPEG of this quality; null: as PNG."""
    labels: bool = False
    """Tell the agent what is on the screen by name (``uiautomator dump``, after each step). The agent ``device`` then
    prefers to touch what the instruction names. A screen that never rests has no names."""
    adb_keyboard: bool | None = expert(None)
    """Type through the app ADBKeyboard, which accepts any Unicode; null: if it is installed. Without it, ASCII only."""
    reset_commands: list[str] = expert(
        [
            "settings put global window_animation_scale 0",
            "settings put global transition_animation_scale 0",
            "settings put global animator_duration_scale 0",
        ]
    )
    """Shell commands on the device at the start of each episode. Be careful on a phone that somebody uses."""
    record_path: EmulatorOutput | None = None
    """Folder for an mp4 film of each episode, made by the device's ``screenrecord`` (at most 3 minutes each)."""
    lock_path: EmulatorOutput | None = expert(None)
    """Folder through which the slots of a machine agree on ports and turns, and where logs go; null: one of this user
    under /tmp."""
