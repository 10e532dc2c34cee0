"""The facts of a machine that a run's figures depend on."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def machine_facts() -> dict[str, Any]:
    """Returns processor, cores, memory in bytes, system and Python of this machine; no names, addresses or paths."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "system": _system(),
        "python": platform.python_version(),
    }


def _system() -> str:
    """Returns system, release and C library; ``platform.platform`` would start a program to find them."""
    system, library = os.uname(), "".join(platform.libc_ver())
    return "-".join([system.sysname, system.release, system.machine, *(["with", library] if library else [])])


def dependency_versions() -> dict[str, str]:
    """Returns the versions of what this package depends on, as far as it is installed here."""
    try:
        required = metadata.requires("digirl_dist") or []
    except metadata.PackageNotFoundError:
        return {}
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in required}
    return {name: version for name in sorted(names) if (version := version_of(name))}


def version_of(package: str) -> str:
    """Returns the version of an installed package; empty for one that is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1][:200] if found else platform.machine()
