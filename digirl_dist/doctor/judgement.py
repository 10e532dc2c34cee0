"""Judges the findings of ``probe``: pure functions from facts to checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from digirl_dist import capacity
from digirl_dist.capacity import POLICY_MIB, most_slots
from digirl_dist.doctor.check import Check
from digirl_dist.emulator.plugins import EmulatorPlugin
from digirl_dist.emulator.plugins.android import AndroidSettings
from digirl_dist.settings import EmulatorSettings


@dataclass(frozen=True)
class AndroidRequirements:
    """The fields of the emulator's settings. ``avd`` None: devices by serial, for which adb is enough."""

    avd: str | None = None
    sdk_path: str | None = None
    avd_home: str | None = None
    first_port: int = 5600
    snapshot: str | None = None


@dataclass(frozen=True)
class MachineRequirements:
    """Requirements of one emulator."""

    emulator: str
    memory_mb: int
    cores: float
    """Number of cores that it keeps busy."""
    browser: bool = False
    android: AndroidRequirements | None = None


def requirements_of(settings: EmulatorSettings, takes: capacity.Needs) -> MachineRequirements:
    """Returns an emulator's requirements; ``takes`` is the estimate behind ``bsize: auto``."""
    memory_mb, browser = round(takes.memory_mib), isinstance(settings, EmulatorPlugin) and settings.browser
    android = None
    if isinstance(settings, AndroidSettings):
        android = AndroidRequirements(*(getattr(settings, each.name) for each in fields(AndroidRequirements)))
    return MachineRequirements(settings.name, memory_mb, takes.cores, browser, android)


CLOCK_LIMIT_S = 60.0
"""Largest difference of clocks; beyond it, certificates of package indexes begin to look invalid."""
_ENVIRONMENT_MB = 3000
_JOBS_MB = 500
_ENVIRONMENT_FILES = 20_000
_JOBS_FILES = 1_000
_SURELY_TOO_FEW = 20
"""Below this part of the files that are usually needed, no run starts."""
_ROOM = {
    "run_path": (_ENVIRONMENT_MB, _ENVIRONMENT_FILES, "worker_run_path"),
    "temp_path": (_JOBS_MB, _JOBS_FILES, "worker_temp_path"),
    "save_path": (2000, 1000, "save_path"),
}
_VENV_REMEDY = "`apt-get install python3-venv` there (or uv), or run `digirl-dist setup`"


def judge(
    worker: str, facts: dict[str, Any], requirements: MachineRequirements, slots: int, threads: int
) -> Iterator[Check]:
    """Yields all checks except those of the connection. ``threads`` is worker_torch_threads."""
    yield _python(worker, facts)
    yield from judge_folders(worker, facts)
    yield _memory(worker, facts, requirements, slots)
    yield _cores(worker, facts, requirements, slots)
    if facts["torch"] is not None:
        yield _torch(worker, facts, threads)
    if requirements.browser:
        yield _browser(worker, facts)
    if requirements.android is not None:
        yield from _android(worker, facts, requirements.android, slots)


def clock(worker: str, ahead_s: float) -> Check:
    """Checks the worker's clock, which is ``ahead_s`` seconds ahead of the host's."""
    detail = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the host's"
    remedy = "set both by NTP: `sudo timedatectl set-ntp true`"
    return Check(worker, "clock", abs(ahead_s) < CLOCK_LIMIT_S, detail, remedy, blocks=False)


def _python(worker: str, facts: dict[str, Any]) -> Check:
    tool = "uv" if facts["uv"] else "venv" if facts["venv"] else "neither venv nor uv"
    detail = f"{facts['python']} at {facts['executable']}, {tool}"
    return Check(worker, "python", bool(facts["venv"] or facts["uv"]), detail, _VENV_REMEDY)


def judge_folders(worker: str, facts: dict[str, Any]) -> Iterator[Check]:
    """Yields whether a run can use its folders: those of a worker, or that of the host."""
    for name, found in facts["folders"].items():
        needed_mb, needed_files, setting = _ROOM[name]
        if name == "run_path" and facts["torch"] is not None:
            needed_mb, needed_files = _JOBS_MB, _JOBS_FILES  # only another version of the package needs space
        free_files, title = found["free_files"], f"disk {name}"
        if not found["writable"]:
            detail = f"{found['path']}: {facts['user']} cannot write to {found['blocked_by']}"
            yield Check(worker, title, False, detail, f"set {setting} to a folder that its user can write")
        elif found["lacks"]:
            yield Check(worker, title, False, found["lacks"], f"set {setting} to a folder on a local disk")
        elif free_files is not None and free_files < needed_files:
            detail = f"{_size(found['free_mb'])}, but only {free_files} files (inodes) free at {found['path']}"
            remedy = f"delete files there, or set {setting} to another disk"
            blocks = free_files < needed_files // _SURELY_TOO_FEW
            yield Check(worker, title, False, f"{detail}, about {needed_files} needed", remedy, blocks)
        else:
            enough = found["free_mb"] >= needed_mb
            detail = f"{_size(found['free_mb'])} free at {found['path']}"
            remedy = f"free {_size(needed_mb)} there, or set {setting} to a larger disk"
            yield Check(worker, title, enough, detail + ("" if enough else f", {_size(needed_mb)} needed"), remedy)


def _memory(worker: str, facts: dict[str, Any], requirements: MachineRequirements, slots: int) -> Check:
    free = facts["memory_mb"]
    needed = POLICY_MIB + slots * requirements.memory_mb
    fits = most_slots(free, requirements.memory_mb)
    detail = f"{_size(free)} free, bsize={slots} of {requirements.emulator} needs about {_size(needed)}"
    remedy = f"set bsize={fits} for it" if fits > 0 else "it is too small for this emulator: use another machine"
    return Check(worker, "memory", needed <= free, detail, remedy)


def _cores(worker: str, facts: dict[str, Any], requirements: MachineRequirements, slots: int) -> Check:
    cores = facts["cores"]
    wanted = slots * requirements.cores
    fits = max(1, int(cores / requirements.cores))
    detail = f"{cores:g} for bsize={slots}, which keep about {wanted:g} busy"
    return Check(
        worker, "cores", wanted <= cores, detail, f"set bsize={fits} for it: more would only wait", blocks=False
    )


def _torch(worker: str, facts: dict[str, Any], threads: int) -> Check:
    said = facts["torch"]
    if said["status"] != 0:
        return Check(worker, "torch", False, f"cannot be imported: {said['said']}", "run `digirl-dist setup`")
    detail = f"{said['said'].split()[0]}, worker_torch_threads={threads} on {facts['cores']:g} cores"
    most = max(1, int(facts["cores"]))
    return Check(worker, "torch", threads <= most, detail, f"set worker_torch_threads={most} or less", blocks=False)


def _browser(worker: str, facts: dict[str, Any]) -> Check:
    browser = facts["browser"]
    if browser is None:
        remedy = "`apt-get install chromium` there, or run `digirl-dist setup`"
        return Check(worker, "chromium", False, "chromium is not on PATH", remedy)
    detail = f"{browser['path']} {browser['version'] or browser['said']}"
    remedy = "it does not run there; install it anew (`apt-get install --reinstall chromium`)"
    return Check(worker, "chromium", bool(browser["version"]), detail, remedy)


def _android(worker: str, facts: dict[str, Any], requirements: AndroidRequirements, slots: int) -> Iterator[Check]:
    found = facts["android"]
    sdk = found["sdk"] or "no Android SDK"
    setup = "run `digirl-dist setup`, or set emulator.sdk_path"
    yield Check(worker, "adb", found["adb"] is not None, found["adb"] or f"none on PATH nor in {sdk}", setup)
    if requirements.avd is None:
        return
    yield _kvm(worker, facts)
    yield Check(worker, "emulator", found["emulator"] is not None, found["emulator"] or f"none in {sdk}", setup)
    yield _avd(worker, found, requirements.avd)
    busy = found["busy_ports"]
    first = requirements.first_port
    detail = f"in use: {', '.join(map(str, busy))}" if busy else f"{first} to {first + 2 * slots}"
    remedy = "end what listens there (`ss -ltnp`), or set emulator.first_port to others"
    yield Check(worker, "ports", not busy, detail, remedy)


def _kvm(worker: str, facts: dict[str, Any]) -> Check:
    kvm = facts["android"]["kvm"]
    if not kvm["exists"]:
        remedy = "switch on virtualisation in its BIOS, or nested virtualisation for this virtual machine"
        return Check(worker, "kvm", False, "there is no /dev/kvm", remedy)
    detail = f"/dev/kvm of group {kvm['group']}, user {facts['user']}"
    join = f"sudo usermod -aG {kvm['group']} {facts['user']}"
    remedy = f"`{join}` there, or `digirl-dist setup`; it counts from the next login"
    return Check(worker, "kvm", kvm["usable"], detail if kvm["usable"] else f"{detail} may not use it", remedy)


def _avd(worker: str, found: dict[str, Any], avd: str) -> Check:
    there = ", ".join(found["avds"]) or "none"
    if avd not in found["avds"]:
        detail = f"there is no AVD {avd} in {found['avd_home']} (there are: {there})"
        return Check(worker, "avd", False, detail, "run `digirl-dist setup`, or set emulator.avd to one of these")
    lacks = found["avd_lacks"]
    detail = f"{avd}: {lacks} is missing" if lacks else f"{avd} in {found['avd_home']}; --try boots it"
    remedy = f"`{found['avdmanager'] or 'avdmanager'} delete avd -n {avd}` there, then `digirl-dist setup`"
    if lacks.endswith("snapshot.pb"):
        remedy = "`digirl-dist setup` makes the snapshot, emulator.snapshot=null boots anew for each episode"
    return Check(worker, "avd", not lacks, detail, remedy)


def _size(mb: int) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1000 else f"{mb} MB"
