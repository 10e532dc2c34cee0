"""Collects facts about a machine. The host streams this file to the worker's own Python (see ``RemotePython``).

Reads a line of JSON from stdin (see ``ProbeRequest``) and writes one with the facts to stdout. It changes nothing; the
host judges the facts in ``judgement``.
"""

from __future__ import annotations

import grp
import importlib.util
import json
import os
import platform
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from digirl_dist.capacity import Machine
from digirl_dist.storage.file_system import free, lock, nearest, refuse_squatted
from digirl_dist.worker_program.pip_configuration import path_of_uv

_COMMAND_LIMIT_S = 60.0
_SDK_PLACES = ("~/Android/Sdk", "~/android-sdk", "/opt/android-sdk", "/usr/lib/android-sdk")
_BROWSERS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The same names as in ``emulator/chromium.py``, which is not installed yet when this runs."""
_TORCH = "import torch; print(torch.__version__, torch.get_num_threads())"


@dataclass
class ProbeRequest:
    """The facts to collect. Paths may start with ``~/``."""

    folders: dict[str, str]
    """Folders that a run will write to, by purpose."""
    torch_python: list[str]
    """The command of the Python that runs the policy; empty if there is none yet."""
    browser: bool
    android: dict[str, Any] | None
    slots: int


def look(request: ProbeRequest) -> dict[str, Any]:
    """Returns all facts as JSON values."""
    torch_python = [os.path.expanduser(word) for word in request.torch_python]
    machine = Machine.here()
    found: dict[str, Any] = {
        "time": time.time(),
        "user": _user(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "venv": all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip")),
        "uv": path_of_uv(),
        "cores": machine.cores,
        "memory_mb": int(machine.memory_mib),
        "folders": {name: folder_facts(Path(path).expanduser()) for name, path in request.folders.items()},
        "torch": _said([*torch_python, "-c", _TORCH]) if torch_python else None,
    }
    if request.browser:
        found["browser"] = _program(*_BROWSERS)
    if request.android is not None:
        found["android"] = _android(request.android, request.slots)
    return found


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs as any user
        return str(os.getuid())


def folder_facts(folder: Path) -> dict[str, Any]:
    """Returns whether a folder can be written to or made, and what its disk lacks; makes nothing."""
    place = nearest(folder)
    free_bytes, free_files = free(place)
    return {
        "path": str(folder),
        "free_mb": free_bytes >> 20,
        "free_files": free_files,
        "writable": place.is_dir() and os.access(place, os.W_OK | os.X_OK),
        "blocked_by": str(place),
        "lacks": _lacks(place),
    }


def _lacks(place: Path) -> str:
    """Returns why a run cannot use a folder that it may write to; empty if nothing is known against it."""
    try:
        refuse_squatted(place)
        with suppress(PermissionError, NotADirectoryError):
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                lock(folder, shared=True)
            finally:
                os.close(folder)
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    return ""


def _said(command: list[str]) -> dict[str, Any]:
    """Returns exit status and last line of a command, run without the login's ``PYTHONPATH``, which could change its
    imports."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
            timeout=_COMMAND_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"status": -1, "said": str(error)}
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return {"status": done.returncode, "said": lines[-1] if lines else ""}


def _program(*names: str) -> dict[str, Any] | None:
    """Returns the first of these programs on PATH, with its version."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        return None
    said = _said([path, "--version"])["said"]
    version = re.search(r"\d+(\.\d+)+", said)
    return {"path": path, "version": version[0] if version else "", "said": said}


def _android(wanted: dict[str, Any], slots: int) -> dict[str, Any]:
    sdk = _sdk(wanted["sdk_path"])
    avds = Path(wanted["avd_home"] or os.environ.get("ANDROID_AVD_HOME") or "~/.android/avd").expanduser()
    ports = range(wanted["first_port"], wanted["first_port"] + 2 * slots)
    return {
        "kvm": _kvm(Path("/dev/kvm")),
        "sdk": str(sdk) if sdk else None,
        "adb": _tool(sdk, "platform-tools/adb") or shutil.which("adb"),
        "emulator": _tool(sdk, "emulator/emulator"),
        "avdmanager": _tool(sdk, "cmdline-tools/latest/bin/avdmanager"),
        "avds": sorted(path.stem for path in avds.glob("*.ini")),
        "avd_home": str(avds),
        "avd_lacks": _missing_content(avds, wanted["avd"], wanted["snapshot"]),
        "busy_ports": [port for port in ports if not _is_free(port)],
    }


def _sdk(given: str | None) -> Path | None:
    if given is not None:
        return Path(given).expanduser()
    named = [os.environ[name] for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT") if os.environ.get(name)]
    return next((path for each in (*named, *_SDK_PLACES) if (path := Path(each).expanduser()).is_dir()), None)


def _tool(sdk: Path | None, name: str) -> str | None:
    return str(sdk / name) if sdk is not None and os.access(sdk / name, os.X_OK) else None


def _missing_content(avds: Path, avd: str | None, snapshot: str | None) -> str:
    """Returns the first missing file of the AVD; empty if none is missing or there is no such AVD."""
    if avd is None or not (avds / f"{avd}.ini").is_file():
        return ""
    pairs = [line.partition("=") for line in (avds / f"{avd}.ini").read_text(errors="replace").splitlines()]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    content = Path(values.get("path", avds / f"{avd}.avd"))
    needed = [content / "config.ini"]
    if snapshot is not None:
        needed.append(content / "snapshots" / snapshot / "snapshot.pb")
    return next((str(path) for path in needed if not path.is_file()), "")


def _kvm(device: Path) -> dict[str, Any]:
    if not device.exists():
        return {"exists": False}
    group = device.stat().st_gid
    with suppress(KeyError):
        return {"exists": True, "usable": os.access(device, os.R_OK | os.W_OK), "group": grp.getgrgid(group).gr_name}
    return {"exists": True, "usable": os.access(device, os.R_OK | os.W_OK), "group": str(group)}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main(source: BinaryIO) -> None:
    print(json.dumps(look(ProbeRequest(**json.loads(source.readline())))), flush=True)


if __name__ == "__main__":
    main(sys.stdin.buffer)
