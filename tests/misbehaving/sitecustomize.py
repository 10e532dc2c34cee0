"""Makes a worker program misbehave: Python imports this at its start wherever this folder is on PYTHONPATH.

``MISBEHAVIOUR`` says how. Only the worker program itself is changed, not the processes that it starts.
"""

from __future__ import annotations

import os
import sys

CLAIMED = [(0, 77), (5, 1)]
"""What ``claims`` says it holds: indices and iterations that no host ever leased."""


def drops_a_lease() -> None:
    """The first ticket that the program is leased is lost on its way to the slots."""
    from digirl_dist.rollout.rollout import Rollout

    lease = Rollout.lease
    dropped = []

    def lossy(self, tickets):
        if tickets and not dropped:
            dropped.append(tickets[0])
            tickets = tickets[1:]
        lease(self, tickets)

    Rollout.lease = lossy


def forgets_an_episode() -> None:
    """The first episode that ends is neither written nor told."""
    from digirl_dist.rollout.rollout import Finished, Rollout

    turn = Rollout.turn
    forgotten = []

    def forgetful(self, *arguments):
        happened = turn(self, *arguments)
        finished = [one for one in happened if isinstance(one, Finished)]
        if finished and not forgotten:
            forgotten.append(finished[0])
            happened = [one for one in happened if one is not finished[0]]
        return happened

    Rollout.turn = forgetful


def claims_tickets() -> None:
    """Heartbeats name tickets that the program never got."""
    import msgspec

    from digirl_dist.tasks import Key
    from digirl_dist.worker_program.core import ProgramCore

    heartbeat = ProgramCore.heartbeat

    def boastful(self, *arguments):
        beat = heartbeat(self, *arguments)
        return msgspec.structs.replace(beat, held=[*beat.held, *(Key(*claimed) for claimed in CLAIMED)])

    ProgramCore.heartbeat = boastful


if "digirl_dist.worker_program.program" in sys.orig_argv:
    {"drops": drops_a_lease, "forgets": forgets_an_episode, "claims": claims_tickets}[os.environ["MISBEHAVIOUR"]]()
