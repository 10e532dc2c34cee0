"""What an emulator may be told."""

from dataclasses import dataclass, field
from typing import Any

from digirl_dist.settings.missing import MISSING


@dataclass
class EmulatorSettings:
    """What every emulator has."""

    name: str = MISSING


@dataclass
class PhoneSettings(EmulatorSettings):
    """The demo phone, drawn with Pillow."""

    name: str = "phone"
    shuffle_icons: bool = False
    """Put the icons of the home screen in another order in each episode."""


@dataclass
class GymnasiumSettings(EmulatorSettings):
    """Any Gymnasium environment: by ``id``, or a class of yours as ``entry_point: my_file:MyEnv``."""

    name: str = "gymnasium"
    id: str | None = None
    """As registered (``CartPole-v1``, ``ALE/Pong-v5``), or ``my_file:Name-v0`` where importing my_file registers it."""
    entry_point: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What the environment is built with, beside its registered arguments."""
    success_reward: float = 0.0
    """An episode is a success when its return is above this, unless the environment says ``info["success"]``."""
    observe: list[str] = field(default_factory=list)
    """Which entries of a dict observation are used; empty: all."""
    touch: str | None = None
    """What puts touch-screen actions into the environment's own form, as ``digirl_dist.emulator.browsergym:touch`` or
    ``my_file:my_function``. Such an environment takes ``agent=device``."""


@dataclass
class MiniwobSettings(EmulatorSettings):
    """MiniWoB++ pages in headless Chromium."""

    name: str = "miniwob"
    task: Any = "click-test-2"
    """A page by name, several as a list or with commas between them, or ``all``."""


@dataclass
class AndroidSettings(EmulatorSettings):
    """Android devices over adb: instances of one AVD that are started here, or devices by serial. See docs/android.md.

    Paths are those of the worker; null stands for the usual places.
    """

    name: str = "android"
    avd: str | None = None
    """Each slot starts a ``-read-only`` instance of this AVD. Give this or ``serials``."""
    serials: list[str] = field(default_factory=list)
    """Devices that run already, one per slot: ``10.0.0.7:5555`` by network, or a USB serial (see adb_server)."""
    adb_server: str | None = None
    """For ``serials``: host:port of an adb server that runs. Null: each slot has its own, which ends with it."""
    sdk_path: str | None = None
    """Android SDK with ``emulator/emulator``; null: ANDROID_HOME, ANDROID_SDK_ROOT, ~/Android/Sdk …"""
    avd_home: str | None = None
    """Folder with the AVDs; null: ANDROID_AVD_HOME, else ~/.android/avd."""
    emulator_args: list[str] = field(default_factory=lambda: ["-gpu", "swiftshader_indirect"])
    """Further arguments of the emulator program."""
    first_port: int = 5600
    """Instances take pairs of ports from here on. Not the usual 5554: any adb server on the machine claims those."""
    snapshot: str | None = "digirl"
    """State of the AVD in which it starts and to which each reset returns; null: each reset starts it anew."""
    boots_at_once: int = 2
    """Instances that may boot at the same time on one machine; the others wait …"""
    turn_s: float = 600.0
    """… at most this long for their turn."""
    boot_s: float = 240.0
    """Longest start of one instance, until ``sys.boot_completed``; also how long a device by serial may be away."""
    load_s: float = 30.0
    """Longest load of the snapshot; after that the instance is started anew."""
    command_s: float = 20.0
    """Longest answer to one adb command."""
    settle_s: float = 5.0
    """A screen that still moves after this long is taken as it is."""
    settle_gap_s: float = 0.2
    """The screen has settled when two pictures, at least this far apart, are equal …"""
    masked: list[Any] = field(default_factory=lambda: [[0.0, 0.0, 1.0, 0.04]])
    """… outside these parts, [left, top, right, bottom] as shares of the screen: clock and battery."""
    image_size: list[int] = field(default_factory=lambda: [800, 360])
    """Height and width to which screenshots are scaled for the agent and the trajectories."""
    jpeg_quality: int | None = None
    """Store screenshots as JPEG of this quality; null: as PNG."""
    adb_keyboard: bool | None = None
    """Type through the app ADBKeyboard, which takes any Unicode; null: if it is installed. Without it, ASCII only."""
    reset_commands: list[str] = field(
        default_factory=lambda: [
            "settings put global window_animation_scale 0",
            "settings put global transition_animation_scale 0",
            "settings put global animator_duration_scale 0",
        ]
    )
    """Shell commands on the device at the start of each episode. Think twice on a phone that somebody uses."""
    record_path: str | None = None
    """Folder for a film of each episode as mp4, made by the device's ``screenrecord`` (at most 3 minutes each)."""
    lock_path: str | None = None
    """Folder by which the slots of a machine agree on ports and turns, with logs; null: one of this user under /tmp."""


@dataclass
class RehearsalSettings(EmulatorSettings):
    """No device: takes as long, and fails as often, as said here. Times are seconds."""

    name: str = "rehearsal"
    boot_s: float = 0.0
    """Start of the emulator."""
    reset_s: float = 2.0
    """Median of the log-normal time of a reset …"""
    reset_sigma: float = 0.4
    """… and the standard deviation of its logarithm (0: always the median)."""
    step_s: float = 1.0
    """The same for a step …"""
    step_sigma: float = 0.4
    steps: float = 10.0
    """… and for the number of steps of an episode."""
    steps_sigma: float = 0.3
    slowness: float = 1.0
    """Multiplies all times. For one slow machine: ``worker_ips: [{host: …, emulator: {slowness: 4}}]``."""
    hang_rate: float = 0.0
    """Chance that a step never answers, …"""
    crash_rate: float = 0.0
    """… that it ends the emulator's process, …"""
    error_rate: float = 0.0
    """… that it raises an error."""
    faults_once_in: str | None = None
    """A folder on the worker. With it, faults follow from task and seed and each strikes once, so that a rehearsal can
    be repeated (with the folder removed); without it, they are random."""
    image_size: list[int] = field(default_factory=list)
    """Height and width of a screenshot of noise; empty: none."""


@dataclass
class CustomEmulatorSettings(EmulatorSettings):
    """An emulator of yours: ``entry_point: my_file:MyDevice`` is a class that fulfils ``digirl_dist.emulator.Emulator``
    and has two class attributes more: ``spec`` (an EmulatorSpec) and ``tasks(task_set, split)`` (a list of Task)."""

    name: str = "custom"
    entry_point: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
