"""A chat model that is trained over SSH workers, as a user would call it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_files import metrics
from safetensors.torch import load_file
from tiny_vlm import save_tiny_vlm

from digirl_dist.cli.main import main
from digirl_dist.emulator.phone import PHONE_SPEC
from digirl_dist.settings import LoraSettings, VlmSettings
from digirl_dist.storage import parquet

pytestmark = [pytest.mark.system, pytest.mark.long_file(20)]

WORDS = [
    "dry_run=true inference=host train_iterations=3 rollout_size=8 bsize=2 max_steps=4",
    "agent=vlm agent.lora.r=2 agent.max_new_tokens=2",
    "train_algorithm=grpo algorithm.grpo.group_size=4",
    "algorithm.grpo.actor.batch_size=8 algorithm.grpo.actor.epochs=1 algorithm.grpo.actor.learning_rate=0.02",
]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_trains_over_ssh_workers_and_only_low_rank_weights_are_saved(tmp_path: Path) -> None:
    model, out = save_tiny_vlm(tmp_path / "model"), tmp_path / "run"
    (tmp_path / "tasks.yaml").write_text("- open-clock-0\n")
    given = [f"agent.model={model}", f"save_path={out}", f"task_set={tmp_path / 'tasks.yaml'}"]
    assert (
        main(["--config-path", "config/multimachine", "--config-name", "host", *" ".join(WORDS).split(), *given]) == 0
    )
    lines = metrics(out)
    assert [line["episodes"] for line in lines] == [8, 8, 8] and {line["push_bytes"] for line in lines} == {0}
    first, last = (load_file(out / "checkpoints" / name / "policy.safetensors") for name in ("000000", "000003"))
    assert first and first.keys() == last.keys() and all("lora_" in name for name in first)
    assert sum(tensor.numel() for tensor in first.values()) < 5000
    assert any(line["success_rate"] not in (0.0, 1.0) for line in lines), "some group has something to tell"
    assert not all(torch.equal(first[name], last[name]) for name in first)
    _assert_exact(out, model, iteration=2)


def _assert_exact(out: Path, model: Path, iteration: int) -> None:
    """What was stored of the probability of each action is what the policy that acted gives it here."""
    agent = VlmSettings(model=str(model), lora=LoraSettings(r=2), max_new_tokens=2).build(PHONE_SPEC)()
    agent.load_state_dict(load_file(out / "checkpoints" / f"{iteration:06d}" / "policy.safetensors"))
    episodes = parquet.read(out / "trajectories" / f"{iteration:06d}.parquet")
    steps = [step for episode in episodes for step in episode.steps]
    assert steps and all(episode.ticket.policy_version == iteration for episode in episodes)
    with torch.no_grad():
        computed = agent.log_prob([step.observation for step in steps], [step.action for step in steps])
    assert torch.allclose(computed, torch.tensor([step.log_prob for step in steps]), atol=1e-5)
