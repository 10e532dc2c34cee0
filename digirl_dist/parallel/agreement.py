"""Ranks compare what they were started with before they start: settings, spaces, versions."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

from digirl_dist.errors import SettingsError
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.rank import named

_MOST = 8
"""Differences that are told; the others are counted."""


def agree(group: Group, facts: Mapping[str, str]) -> None:
    """Raises SettingsError on every rank, naming each fact that differs, with ranks and their machines.

    Every rank must call it, at the same place.
    """
    if group.rank.world_size == 1:
        return
    own = {"host": socket.gethostname(), "facts": dict(facts)}
    told = [json.loads(part) for part in group.gather(json.dumps(own).encode())]
    verdict = group.broadcast(_verdict([one["facts"] for one in told], [one["host"] for one in told]).encode()).decode()
    if verdict:
        raise SettingsError(verdict)


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
