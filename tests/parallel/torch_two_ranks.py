"""What two ranks try together, in one launch: python -m torch.distributed.run … torch_two_ranks.py FOLDER.

Each rank writes what it found to FOLDER/rankN.json for the tests to judge.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from single_steps import row_of
from torch import nn

from digirl_dist.agent import Agent
from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.agent.sharding import Sharded, ShardedRows
from digirl_dist.algorithm.digirl import DigiRL
from digirl_dist.algorithm.filtered_bc import FilteredBC
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.grpo_replay import GrpoReplay
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.algorithm.options import GrpoActorSettings
from digirl_dist.algorithm.ppo import PPO
from digirl_dist.algorithm.table import Row
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import PeerError, SettingsError
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.peers import ALONE, OwnRows, Peers, SharedRows, average
from digirl_dist.parallel.rank import own_rank
from digirl_dist.settings import (
    ActorSettings,
    DigirlSettings,
    FilteredBcSettings,
    GenericAgentSettings,
    GrpoReplaySettings,
    GrpoSettings,
    PpoSettings,
)
from digirl_dist.settings.plugins import values
from digirl_dist.tasks import Task, Ticket
from digirl_dist.train.loop import EpisodeWindow
from digirl_dist.trajectory import Observation, Step, Trajectory

UPDATES = 20
FEWER = 8
ROWS = 16
UNEVEN = (slice(0, 10), slice(10, 16))


def agent(kind: type[GenericPolicy] = GenericPolicy) -> GenericPolicy:
    torch.manual_seed(7)
    return kind(EmulatorSpec(DiscreteActions(3), vector_size=4), **values(GenericAgentSettings(width=8)))


class LearnsAPart(GenericPolicy):
    """Names as its parameters those alone that learn, as agents with large models do."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return (each for each in super().parameters(recurse) if each.requires_grad)


def partly_frozen() -> GenericPolicy:
    policy = agent(LearnsAPart)
    next(policy.parameters()).requires_grad_(False)
    return policy


class InParts(GenericPolicy):
    """Computes two rows at a time, as agents with large models do."""

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        parts = [slice(first, first + 2) for first in range(0, len(actions), 2)]
        return torch.cat([super(InParts, self).log_prob(observations[part], actions[part]) for part in parts])


def rows() -> list[Row]:
    generator = torch.Generator().manual_seed(3)
    seen = torch.randn(ROWS, 4, generator=generator).numpy()
    return [row_of(Observation(vector=seen[k]), k % 3, weight=0.5 + k) for k in range(ROWS)]


def learn(
    examples: list[Row],
    peers: Peers,
    size: int,
    at_once: int = 0,
    made: Callable[[], Agent] = agent,
    updates: int = UPDATES,
) -> tuple[list[float], list[float]]:
    """The weights after these updates and the losses on the way; the clipping limit is reached each time."""
    policy = made()
    settings = ActorSettings(1e-2, size, at_once, epochs=1, max_examples=10**6, clip_norm=1e-2, weight_decay=0.1)
    imitation = Imitation(policy, settings, seed=1, peers=peers)
    losses = [imitation.fit(examples).loss for _ in range(updates)]
    return flat(policy), losses


def flat(policy: Agent) -> list[float]:
    """Of a sharded one, nothing but on rank 0."""
    parts = [tensor.reshape(-1) for tensor in policy.state_dict().values()]
    return [] if not parts else torch.cat(parts).tolist()  # type: ignore[no-any-return]


def episodes(starts: range, length: int) -> list[Trajectory]:
    """Four episodes from each start; the first of them is the best."""
    seen = rows()
    found = []
    for start in starts:
        for member in range(4):
            picked = [seen[(start + member + place) % ROWS] for place in range(length + member)]
            steps = [Step(row.observation, row.action, -1.1, 0.0, False, False) for row in picked]
            steps[-1] = replace(steps[-1], reward=float(member == 0), terminated=True)
            ticket = Ticket(0, member, Task("t"), start, 0)
            found.append(Trajectory(ticket, "e", "w", 0, steps, picked[0].observation, member == 0))
    return found


def compare(
    fresh: list[Trajectory],
    peers: Peers,
    made: Callable[[], Agent] = agent,
    size: int = 1000,
    replay_weight: float = 0.0,
    updates: int = 5,
) -> tuple[list[float], list[float]]:
    """The weights after some updates by GRPO and the losses on the way; a pass is one minibatch by default."""
    policy, actor = made(), GrpoActorSettings(1e-2, batch_size=size, rows_at_once=3)
    grpo = Grpo(policy, GrpoSettings(group_size=4, actor=actor), 1, peers)
    if replay_weight:
        settings = GrpoReplaySettings(clip_high=0.2, replay_weight=replay_weight, actor=actor)
        grpo = GrpoReplay(policy, settings, 1, peers)
    losses = [grpo.update(fresh, fresh).figures["actor_loss"] for _ in range(updates)]
    return flat(policy), losses


def proximal(
    fresh: list[Trajectory], peers: Peers, made: Callable[[], Agent] = agent
) -> tuple[list[float], list[float]]:
    """The same by PPO, whose value function learns with the policy."""
    policy = made()
    ppo = PPO(policy, PpoSettings(1e-2, batch_size=1000, clip_norm=0.1, anneal_iterations=5), 1, peers)
    losses = [ppo.update(fresh, fresh).figures["ppo_loss"] for _ in range(4)]
    return flat(policy), losses


def figures(fresh: list[Trajectory], replay: list[Trajectory], peers: Peers) -> dict[str, dict[str, float]]:
    """Of one update by each algorithm that selects what it learns from."""
    actor = ActorSettings(1e-2, batch_size=1000, epochs=1)
    digirl = DigirlSettings(actor=actor)
    digirl.VALIDATION_SHARE = 0.4  # type: ignore[misc]
    made = {
        "grpo_replay": GrpoReplay(agent(), GrpoReplaySettings(actor=GrpoActorSettings(1e-2)), 1, peers),
        "filtered_bc": FilteredBC(agent(), FilteredBcSettings(top_share=0.5, actor=actor), 1, peers),
        "digirl": DigiRL(agent(), digirl, 1, peers),
    }
    return {name: algorithm.update(fresh, replay).figures for name, algorithm in made.items()}


def nothing(peers: Peers, made: Callable[[], Agent] = agent) -> dict[str, list[str]]:
    """The figures that are not finite, by algorithm, where all episodes are alike and where there are none."""
    alike = []
    for one in episodes(range(2), 1):
        last = replace(one.steps[0], reward=0.0, terminated=True)
        alike.append(replace(one, success=False, steps=[last], final_observation=last.observation))
    actor = ActorSettings(1e-2)
    found = {}
    for name, algorithm in {
        "grpo": Grpo(made(), GrpoSettings(group_size=4), 1, peers),
        "grpo_replay": GrpoReplay(made(), GrpoReplaySettings(group_size=4), 1, peers),
        "filtered_bc": FilteredBC(made(), FilteredBcSettings(actor=actor), 1, peers),
        "digirl": DigiRL(made(), DigirlSettings(actor=actor), 1, peers),
        "ppo": PPO(made(), PpoSettings(1e-2), 1, peers),
    }.items():
        told = [algorithm.update(alike, alike).figures, algorithm.update([], []).figures]
        found[name] = [key for each in told for key, value in each.items() if not math.isfinite(value)]
    return found


def windows(group: Group) -> dict[str, Any]:
    """Rank r finishes 100 episodes of return r; then nobody any; and at the start, rank 0 alone."""
    found: dict[str, Any] = {}
    window = EpisodeWindow()
    found["empty"] = window.averages(group)
    if group.rank.is_first:
        window.add(0.0, 10)
    found["rank 0 alone"] = window.averages(group)
    for _ in range(100):
        window.add(float(group.rank.rank), 20)
    found["full"] = window.averages(group)
    found["again"] = window.averages(group)
    return found


def gradients(group: Group) -> list[Any]:
    """Rank 1 has no row; one parameter is used by nobody."""
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    if group.rank.is_first:
        (used * 3).sum().backward()
    loss = average(group, [used, unused], 5.0 if group.rank.is_first else 0.0, 2.0 if group.rank.is_first else 0.0)
    assert used.grad is not None
    return [used.grad.tolist(), unused.grad, loss]


def low_precision(group: Group) -> list[Any]:
    """A gradient in bfloat16, which has no 257, beside one in float32; rank 1 has twice the loss."""
    parameters = [nn.Parameter(torch.ones(1, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, float(group.rank.is_first))
    loss = average(group, parameters, 257.0, 1.25 * (1 + group.rank.rank))
    return [*(each.grad.tolist() for each in parameters if each.grad is not None), loss]


def shares(spread: Sharded) -> dict[str, Any]:
    """How many numbers are on this rank, and of how many."""
    parameters: list[Any] = list(spread().parameters())
    found = {
        "part": sum(each.to_local().numel() for each in parameters),
        "of": sum(each.numel() for each in parameters),
    }
    try:
        replace(spread, blocks=("T5Block",))()
    except SettingsError as error:
        return {**found, "refused": str(error)}
    return found


def large(group: Group) -> dict[str, Any]:
    """More bytes than torchrun's store takes at once, and than are exchanged at once; and how large the store is."""
    own = bytes([group.rank.rank + 1]) * ((64 << 20) + 5 * group.rank.rank)
    gathered, back = group.gather(own), group.broadcast(own)
    return {
        "gathered": [[len(part), set(part) == {rank + 1}] for rank, part in enumerate(gathered)],
        "broadcast": [len(back), set(back) == {1}],
        "store": Path(os.environ["DIGIRL_DIST_STORE"]).stat().st_size,
    }


def what_fails(group: Group) -> dict[str, str]:
    found = {}
    try:
        group.check_in_step(b"same" if group.rank.is_first else b"else")
    except PeerError as error:
        found["astray"] = str(error)
    if group.rank.is_first:
        time.sleep(3)  # as an evaluation would, on the way to a gate with a limit of 2 s
        return found
    try:
        group.gate("the end of the evaluation")
    except PeerError as error:
        found["late"] = str(error)
    return found


def main(folder: Path) -> None:
    rank = own_rank(os.environ)
    with joined(rank, "cpu", GroupLimits(start_s=60, exchange_s=20, gate_s=2)) as group:
        examples, every = rows(), [*episodes(range(2), 2), *episodes(range(2, 3), 4)]
        mine = examples[UNEVEN[rank.rank]]
        own_episodes = every[:8] if rank.is_first else every[8:]
        failed = own_episodes[1]
        with_unsolved = [*own_episodes, replace(failed, ticket=replace(failed.ticket, task=Task("unsolved")))]
        shared, own, sharded = SharedRows(group), OwnRows(group), ShardedRows(group)
        spread = Sharded(agent, group, "cpu", ("Linear",))
        part_spread = Sharded(partly_frozen, group, "cpu")
        spread_in_parts = Sharded(partial(agent, InParts), group, "cpu", ("Linear",))
        found = {
            "alone": learn(examples, ALONE, ROWS),
            "shared": learn(examples, shared, ROWS),
            "own": learn(mine, own, len(mine)),
            "alone, few at once": learn(examples, ALONE, 11, at_once=3),
            "shared, few at once": learn(examples, shared, 11, at_once=3),
            "own, few at once": learn(mine, own, len(mine), at_once=3),
            "alone, grpo": compare(every, ALONE),
            "shared, grpo": compare(every, shared),
            "own, grpo": compare(own_episodes, own),
            "half, grpo": compare(every[:8], ALONE),
            "nothing on rank 1, grpo": compare(every[:8] if rank.is_first else [], own),
            "alone, ppo": proximal(every, ALONE),
            "own, ppo": proximal(own_episodes, own),
            "sharded, ppo": proximal(every, sharded, spread),
            "alone, 2 of 3": learn(examples[:3], ALONE, 2, updates=FEWER),
            "sharded": learn(examples[:3], sharded, 2, made=spread, updates=FEWER),
            "alone, frozen": learn(examples, ALONE, 11, made=partly_frozen, updates=FEWER),
            "sharded, frozen": learn(examples, sharded, 11, at_once=2, made=part_spread, updates=FEWER),
            "alone, grpo that imitates": compare(every, ALONE, agent, 5, 1.0, 2),
            "sharded, grpo that imitates": compare(every, sharded, spread, 5, 1.0, 2),
            "alone, 7 of 14": learn(examples[:14], ALONE, 11, updates=FEWER),
            "sharded, in parts": learn(examples[:14], sharded, 11, made=spread_in_parts, updates=FEWER),
            "shares": shares(spread),
            "learning": [len([*made().parameters()]) for made in (partly_frozen, part_spread)],
            "windows": windows(group),
            "gradients": gradients(group),
            "low precision": low_precision(group),
            "total": own.total(torch.tensor([1.0 + rank.rank])).tolist(),
            "broadcast": group.broadcast(b"" if rank.rank else b"word").decode(),
            "gathered": [part.decode() for part in group.gather(f"of {rank.rank}".encode() * rank.rank)],
            "figures": figures(with_unsolved, with_unsolved, own),
            "figures of own alone": figures(with_unsolved, with_unsolved, ALONE),
            "nothing new on rank 1": figures(with_unsolved if rank.is_first else [], with_unsolved, own),
            "nothing to learn": [nothing(shared), nothing(own), nothing(sharded, spread)],
            "large": large(group),
            **what_fails(group),
        }
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
