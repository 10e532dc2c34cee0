"""Where the Android SDK, an AVD and its snapshots are on this machine, with the remedy where they are not."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.errors import SettingsError

_SDK_VARIABLES = ("ANDROID_HOME", "ANDROID_SDK_ROOT")
_SDK_PLACES = ("~/Android/Sdk", "~/android-sdk", "/opt/android-sdk", "/usr/lib/android-sdk")


@dataclass(frozen=True)
class Avd:
    """An AVD that can be started here. ``emulator`` is the program."""

    name: str
    emulator: Path
    sdk: Path
    home: Path
    """The folder with ``NAME.ini``."""
    content: Path
    """The folder ``NAME.avd``."""

    def has_snapshot(self, name: str) -> bool:
        return (self.content / "snapshots" / name / "snapshot.pb").is_file()


def find_sdk(settings: AndroidOptions) -> Path | None:
    """As settings, environment or the usual places have it; over SSH the environment is that of no login."""
    if settings.sdk_path is not None:
        return Path(settings.sdk_path).expanduser()
    named = [os.environ[name] for name in _SDK_VARIABLES if os.environ.get(name)]
    return next((path for place in (*named, *_SDK_PLACES) if (path := Path(place).expanduser()).is_dir()), None)


def find_avd(settings: AndroidOptions) -> Avd:
    """Raises SettingsError naming what is missing and how to make it."""
    assert settings.avd is not None
    sdk = find_sdk(settings)
    if sdk is None:
        raise SettingsError(f"no Android SDK at {', '.join(_SDK_PLACES)}; install it or set emulator.sdk_path")
    program = sdk / "emulator" / "emulator"
    if not os.access(program, os.X_OK):
        raise SettingsError(f"{program} is missing; install it with `sdkmanager emulator` or set emulator.sdk_path")
    home = _avd_home(settings)
    content = _content(home, settings.avd)
    avd = Avd(settings.avd, program, sdk, home, content)
    if settings.snapshot is not None and not avd.has_snapshot(settings.snapshot):
        raise SettingsError(
            f"AVD {avd.name} has no snapshot {settings.snapshot!r} in {content / 'snapshots'}; make it once on this "
            f"machine with `{_snapshot_command(avd, settings.snapshot)}`, name another with emulator.snapshot, or set "
            "that to null to boot anew for each episode"
        )
    return avd


def _snapshot_command(avd: Avd, name: str) -> str:
    """What makes a snapshot, to be pasted into a shell of this machine."""
    places = f"ANDROID_HOME={shlex.quote(str(avd.sdk))} ANDROID_AVD_HOME={shlex.quote(str(avd.home))}"
    return f"{places} {sys.executable} -m digirl_dist.emulator.android.snapshot {avd.name} {name}"


def _avd_home(settings: AndroidOptions) -> Path:
    named = settings.avd_home or os.environ.get("ANDROID_AVD_HOME")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("ANDROID_USER_HOME") or "~/.android").expanduser() / "avd"


def _content(home: Path, name: str) -> Path:
    """The folder that ``NAME.ini`` points to."""
    try:
        lines = (home / f"{name}.ini").read_text().splitlines()
    except OSError as error:
        there = sorted(path.stem for path in home.glob("*.ini"))
        raise SettingsError(
            f"there is no AVD {name!r} in {home} (there are: {', '.join(there) or 'none'}); make it with "
            f"`avdmanager create avd -n {name} -k …`, or set emulator.avd_home"
        ) from error
    named = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "path"]
    return Path(named[0]) if named else home / f"{name}.avd"
