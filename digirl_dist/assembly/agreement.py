"""Ranks compare what they were started with before they start: settings, spaces, tasks, versions."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import digirl_dist
from digirl_dist.emulator.plugins import Device
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.rank import named
from digirl_dist.settings import Settings, conversion
from digirl_dist.settings.keys import flat
from digirl_dist.storage.provenance import tasks_in_a_word, version_of

if TYPE_CHECKING:
    from digirl_dist.parallel.group import Group

_OWN = ("save_path", "loggers", "logger_project")
"""Settings of which rank 0 alone makes use."""
_PACKAGES = ("torch", "numpy", "gymnasium")
_MOST = 8
"""Differences that are told; the others are counted."""


def agree(group: Group, settings: Settings, device: Device) -> None:
    """Raises SettingsError on every rank, naming each fact that differs, with ranks and their machines.

    Every rank must call it, at the same place.
    """
    if group.rank.world_size == 1:
        return
    own = {"host": socket.gethostname(), "facts": facts_of(settings, device)}
    told = [json.loads(part) for part in group.gather(json.dumps(own).encode())]
    verdict = group.broadcast(_verdict([one["facts"] for one in told], [one["host"] for one in told]).encode()).decode()
    if verdict:
        raise SettingsError(verdict)


def facts_of(settings: Settings, device: Device) -> dict[str, str]:
    """Returns settings (secrets redacted), the emulator's spaces, its tasks, and versions."""
    plain = flat(conversion.as_mapping(settings))
    found = {key: str(value) for key, value in plain if key not in _OWN}
    spec = device.spec
    found |= {"the actions": str(spec.actions), "the observations": f"{spec.vector_size} numbers, {spec.image_size}"}
    found["the tasks"] = tasks_in_a_word(device.tasks)
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    found["digirl_dist"] = digirl_dist.__version__
    return found | {name: version_of(name) or "none" for name in _PACKAGES}


def _verdict(facts: list[Mapping[str, str]], hosts: list[str]) -> str:
    """Returns what differs between the ranks, empty if nothing does."""
    keys = dict.fromkeys(key for each in facts for key in each)
    differing = [key for key in keys if len({each.get(key) for each in facts}) > 1]
    if not differing:
        return ""
    told = [_difference(key, [each.get(key, "missing") for each in facts], hosts) for key in differing[:_MOST]]
    more = f"; and {len(differing) - _MOST} more" if len(differing) > _MOST else ""
    return (
        f"the ranks were started differently: {'; '.join(told)}{more}; start all nodes with the same command, "
        "configuration and versions"
    )


def _difference(key: str, values: list[str], hosts: list[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    parts = []
    for value, ranks in groups.items():
        machines = ", ".join(dict.fromkeys(hosts[rank] for rank in ranks))
        parts.append(f"{value} on {named(ranks)} ({machines})")
    return f"{key} is {' and '.join(parts)}"
