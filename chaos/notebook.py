"""A notebook with a fleet: ``python -m chaos.notebook PAUSE_S EPISODES key=value …`` collects, and then does nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from digirl_dist import Fleet, Policy
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c, exit_status


def fleet_of(words: Sequence[str]) -> Fleet:
    """Returns a fleet with the settings of a command line, whose values are JSON or words."""
    settings: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        *groups, name = key.split(".")
        inner = settings
        for group in groups:
            known = inner.get(group, {})
            inner[group] = inner = known if isinstance(known, dict) else {"name": known}
        inner[name] = _value(value)
    return Fleet(settings.pop("worker_ips", ()), **settings)


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def new_policy(shows_screens: bool) -> Policy:
    """Returns a generic policy with fresh weights for the emulators of ``stages.py``."""
    from chaos.lab import Screens
    from digirl_dist.agent.plugins.generic import GenericAgentSettings

    settings = GenericAgentSettings()
    policy = Policy(settings.build(Screens.spec if shows_screens else replace(Screens.spec, image_size=None)))
    policy.settings = settings  # as those of a run have them: episodes are checked against the agent, too
    return policy


def main(words: Sequence[str]) -> int:
    pause_s, episodes = float(words[0]), int(words[1])
    policy = new_policy("emulator=custom" in words)
    with fleet_of(words[2:]) as fleet:
        while True:
            fleet.collect(policy, episodes=episodes)
            time.sleep(pause_s)


if __name__ == "__main__":
    end_by_signals_as_by_ctrl_c()
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
