"""What two ranks learn together by JAX, in one launch: python -m digirl_dist.parallel.jax … jax_two_ranks.py FOLDER.

Each rank writes what it found to FOLDER/rankN.json for the tests to judge.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from digirl_dist.algorithm.ppo import PPO, LearnerFactory
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import PeerError
from digirl_dist.parallel.group import Group, GroupLimits
from digirl_dist.parallel.peers import OwnRows, Peers
from digirl_dist.parallel.rank import own_rank
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.settings import GenericAgentSettings, PpoSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

UPDATES = 30
UNEVEN = (slice(0, 2), slice(2, 3))
"""The pieces of either rank: ten steps and six."""


def pieces() -> list[Trajectory]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for length in (4, 6, 6):
        seen = [Observation(vector=row) for row in torch.randn(length + 1, 4, generator=generator).numpy()]
        steps = [Step(seen[k], (k + length) % 3, -1.1, float(k % 2), False, False) for k in range(length)]
        found.append(Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen[-1], False))
    return found


def learn(fresh: list[Trajectory], peers: Peers, learner: LearnerFactory) -> tuple[list[float], list[float]]:
    """The weights of policy and value after some updates, each clipped, and the losses on the way."""
    torch.manual_seed(7)
    policy = GenericAgentSettings(width=8).build(EmulatorSpec(DiscreteActions(3), vector_size=4))()
    settings = PpoSettings(1e-2, batch_size=16, epochs=1, clip_norm=1e-1, width=8)
    ppo = PPO(policy, settings, 2 * UPDATES, 1, peers, learner)
    losses = [ppo.update(fresh, fresh)["ppo_loss"] for _ in range(UPDATES)]
    values = ppo.state_dict()["value"].values()
    weights: list[float] = torch.cat([each.reshape(-1) for each in (*policy.state_dict().values(), *values)]).tolist()
    return weights, losses


def exchanged(group: Group) -> dict[str, Any]:
    """What a group offers beside gradients, by the words of JAX's coordinator."""
    window = EpisodeWindow()
    for _ in range(100):
        window.add(float(group.rank.rank), 20)
    found: dict[str, Any] = {
        "averages": window.averages(group),
        "largest": group.largest(group.rank.rank),
        "broadcast": group.broadcast(b"" if group.rank.rank else b"word").decode(),
        "gathered": [part.decode() for part in group.gather(f"of {group.rank.rank}".encode())],
    }
    try:
        group.check_in_step(b"same" if group.rank.is_first else b"else")
    except PeerError as error:
        found["astray"] = str(error)
    return found


def main(folder: Path) -> None:
    from digirl_dist.algorithm.ppo_jax import JaxLearner
    from digirl_dist.parallel.jax_group import joined

    rank = own_rank(os.environ)
    with joined(rank, "cpu", GroupLimits(start_s=100, exchange_s=60, gate_s=60)) as group:
        peers = OwnRows(group)
        found = {
            "uneven": learn(pieces()[UNEVEN[rank.rank]], peers, JaxLearner),
            "nothing on rank 1": learn(pieces()[UNEVEN[0]] if rank.is_first else [], peers, JaxLearner),
            **exchanged(group),
        }
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
