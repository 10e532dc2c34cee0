"""Updates of a tiny vlm on the ranks of a launch: python -m torch.distributed.run … vlm_ranks.py MODEL FOLDER.

Each rank writes what it learned, passed, exchanged and processed to FOLDER/rankN.json for the tests to judge.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image

from digirl_dist.agent.vlm import VlmAgent
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.options import GrpoActorSettings, Loss
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.peers import ALONE, Peers, SharedRows
from digirl_dist.parallel.rank import own_rank
from digirl_dist.settings import GrpoSettings, LoraSettings, VlmSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

EPISODES, STEPS, BATCH, AT_ONCE = 8, 3, 7, 2


def built(model: str) -> VlmAgent:
    torch.manual_seed(1)
    settings = VlmSettings(model=model, max_new_tokens=4, rows_at_once=2, lora=LoraSettings(r=2))
    agent = settings.build(EmulatorSpec(DeviceActions(), image_size=(40, 30)))()
    assert isinstance(agent, VlmAgent)
    with torch.no_grad():  # fresh low-rank weights change nothing
        for parameter in agent.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return agent


def screen(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(255, size=(40, 30, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def episodes(agent: VlmAgent) -> list[Trajectory]:
    """Every step has a screen of its own."""
    seen = [Observation("open hmm", screen(number)) for number in range(EPISODES * (STEPS + 1))]
    with torch.inference_mode():
        acted = agent.act(seen, [np.random.default_rng(number) for number in range(len(seen))])
    found = []
    for number in range(EPISODES):
        places = range(number * (STEPS + 1), number * (STEPS + 1) + STEPS)
        ends = [at == STEPS - 1 for at in range(STEPS)]
        rewards = [float(end and number % 3 == 0) for end in ends]
        steps = [
            Step(seen[at], acted[at].action, acted[at].log_prob, reward, end, False, (), acted[at].token_log_probs)
            for at, reward, end in zip(places, rewards, ends, strict=True)
        ]
        ticket = Ticket(0, number, Task("open"), number // 4, 0)
        found.append(Trajectory(ticket, f"e{number}", "w", 0, steps, seen[places[-1] + 1], number % 3 == 0))
    return found


@contextmanager
def counted(agent: VlmAgent, group: Group | None) -> Iterator[Counter[str]]:
    """Counts rows that pass with and without gradient, large exchanges, and screens that are processed."""
    found: Counter[str] = Counter()
    log_prob, kind = agent.token_log_probs, type(agent._processor.image_processor._image_processor)
    preprocess = kind.preprocess

    def passed(observations: Sequence[Observation], actions: Sequence[Any]) -> Any:
        found["learned" if torch.is_grad_enabled() else "old"] += len(actions)
        return log_prob(observations, actions)

    def processed(self: Any, images: Any, **named: Any) -> Any:
        found["pictures"] += len(images)
        return preprocess(self, images, **named)

    agent.token_log_probs, kind.preprocess = passed, processed  # type: ignore[method-assign]
    summed = None if group is None else group.sum

    def exchanged(tensor: torch.Tensor) -> torch.Tensor:
        assert summed is not None
        found["gradients"] += tensor.numel() > sum(each.numel() for each in agent.parameters())
        return summed(tensor)

    if group is not None:
        group.sum = exchanged  # type: ignore[method-assign]
    try:
        yield found
    finally:
        kind.preprocess = preprocess
        if group is not None:
            group.sum = summed  # type: ignore[method-assign, assignment]


def learn(model: str, peers: Peers, group: Group | None, loss: Loss) -> dict[str, Any]:
    agent = built(model)
    fresh = episodes(agent)
    actor = GrpoActorSettings(1e-2, batch_size=BATCH, rows_at_once=AT_ONCE, epochs=1, kl_weight=0.1)
    grpo = Grpo(agent, GrpoSettings(group_size=4, loss=loss, actor=actor), 3, peers)
    with counted(agent, group) as found:
        figures, rows = grpo.update(fresh, fresh)
    weights = torch.cat([tensor.reshape(-1) for tensor in agent.state_dict().values()])
    return {
        "weights": weights.tolist(), "figures": figures, "counts": found, "row_weights": [row.weight for row in rows]
    }  # fmt: skip


class Pair(Group):
    """The first two ranks of a launch, with collectives of their own."""

    def __init__(self, whole: Group) -> None:
        super().__init__(replace(whole.rank, world_size=2), whole._store, whole._limits)
        self._pair = dist.new_group([0, 1])

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, group=self._pair)
        return tensor

    def largest(self, number: int) -> int:
        found = torch.tensor([number])
        dist.all_reduce(found, dist.ReduceOp.MAX, self._pair)
        return int(found)


def main(model: str, folder: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    with joined(own_rank(os.environ), "cpu", GroupLimits(start_s=300, exchange_s=300, gate_s=300)) as group:
        pair = Pair(group)
        for loss in Loss:
            if group.rank.is_first:
                found[f"1, {loss.value}"] = learn(model, ALONE, None, loss)
            if group.rank.rank < 2:
                found[f"2, {loss.value}"] = learn(model, SharedRows(pair), pair, loss)
            found[f"4, {loss.value}"] = learn(model, SharedRows(group), group, loss)
    (folder / f"rank{group.rank.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
