"""A notebook with a fleet: ``python -m chaos.notebook PAUSE_S EPISODES ROUNDS key=value …``.

It collects, and does nothing for PAUSE_S seconds after each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from digirl_dist import Fleet, Policy
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c, exit_status


def fleet_of(words: Sequence[str]) -> Fleet:
    """Returns a fleet with the settings of a command line, whose values are JSON or words."""
    settings = _nested(words)
    return Fleet(settings.pop("worker_ips", ()), **settings)


def _nested(words: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        *groups, name = key.split(".")
        inner = settings
        for group in groups:
            known = inner.get(group, {})
            inner[group] = inner = known if isinstance(known, dict) else {"name": known}
        inner[name] = _value(value)
    return settings


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def new_policy(words: Sequence[str]) -> Policy:
    """Returns a generic policy with fresh weights for the emulator that the settings name."""
    from digirl_dist.agent.plugins.generic import GenericAgentSettings
    from digirl_dist.api.training import compose
    from digirl_dist.assembly.parts import build_device

    emulator = [word for word in words if word.startswith("emulator")]
    composed = compose("host", _nested(["agent=generic", *emulator]))
    settings = GenericAgentSettings()
    policy = Policy(settings.build(build_device(composed, composed.emulator).spec))
    policy.settings = settings  # as those of a run have them: episodes are checked against the agent, too
    return policy


def main(words: Sequence[str]) -> int:
    pause_s, episodes, rounds = float(words[0]), int(words[1]), int(words[2])
    policy = new_policy(words[3:])
    with fleet_of(words[3:]) as fleet:
        for _ in range(rounds):
            fleet.collect(policy, episodes=episodes)
            time.sleep(pause_s)
    return 0


if __name__ == "__main__":
    end_by_signals_as_by_ctrl_c()
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
