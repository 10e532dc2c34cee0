"""Training through an inference server over SSH workers, as a user would call it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from engine_server import engine
from run_files import events, metrics
from safetensors.torch import load_file
from tiny_vlm import save_tiny_vlm

from digirl_dist.cli.main import main
from digirl_dist.emulator.phone import PHONE_SPEC
from digirl_dist.settings import LoraSettings, VlmSettings
from digirl_dist.storage import parquet

pytestmark = [pytest.mark.system, pytest.mark.long_file(20)]

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "tok-very-secret-0123456789"
WORDS = (
    "dry_run=true dry_run_workers=1 inference=host rollout_size=8 bsize=4 max_steps=3 limits.episode_attempts=2 "
    "agent=vlm agent.lora.r=2 agent.max_new_tokens=2 engine=openai engine.key_variable=ENGINE_KEY engine.outage_s=1 "
    "train_algorithm=grpo algorithm.grpo.group_size=4 "
    "algorithm.grpo.actor.batch_size=8 algorithm.grpo.actor.epochs=1 algorithm.grpo.actor.learning_rate=0.02"
)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_trains_through_a_server_and_ends_with_one_line_when_that_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    model, out = save_tiny_vlm(tmp_path / "model"), tmp_path / "run"
    (tmp_path / "tasks.yaml").write_text("- open-clock-0\n")

    def run(url: str, iterations: int, *further: str) -> subprocess.CompletedProcess[str]:
        given = [f"agent.model={model}", f"save_path={out}", f"task_set={tmp_path / 'tasks.yaml'}"]
        host = ["--config-path", "config/multimachine", "--config-name", "host"]
        words = [*host, *WORDS.split(), *given, f"engine.url={url}", f"train_iterations={iterations}", *further]
        return subprocess.CompletedProcess(words, main(words), *capsys.readouterr())

    with engine(model, tmp_path / "first", key=KEY) as running:
        done = run(running.url, 2)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = metrics(out)
        assert [line["episodes"] for line in lines] == [8, 8] and {line["push_bytes"] for line in lines} == {0}
        _assert_exact(out, model, iteration=1)
        (checked,) = events(out, "engine_checked")
        assert checked["mean"] <= checked["largest"] < 1e-3 and checked["answers"] == 4
        named = {name.split("-")[1] for path, name in running.posts() if path.endswith("completions")}
        assert named == {"vprobe", "v0", "v1"} and list((out / "adapters").iterdir()) == []
    gone = run(running.url, 3)
    assert gone.returncode != 0 and f"engine.url={running.url} cannot be used" in gone.stderr
    assert "-> start the server" in gone.stderr and "Traceback" not in gone.stderr
    with engine(model, tmp_path / "second", "--dies-after", "8", key=KEY) as dying:
        lost = run(dying.url, 3)
        assert lost.returncode != 0 and "was away for 1 s" in lost.stderr and "engine.url" in lost.stderr
        assert len(metrics(out)) == 2
    with (
        engine(model, tmp_path / "third", "--can-sleep", key=KEY) as staying,
        engine(model, tmp_path / "fourth", "--can-sleep", "--dies-after", "9", key=KEY) as leaving,
    ):
        shared = run(f"[{staying.url},{leaving.url}]", 4, "engine.sleep=true")
        assert shared.returncode == 0, shared.stderr[-3000:]
        stayed, left_at = (Counter(path for path, _ in each.posts()) for each in (staying, leaving))
        assert stayed["/sleep?level=1"] == stayed["/wake_up"] >= 2
        assert 0 < left_at["/v1/chat/completions"] < stayed["/v1/chat/completions"]
    (left,) = [event for event in events(out, "engine_away") if event["reason"].endswith("1 of 2 servers go on")]
    assert leaving.url in left["reason"] and [line["episodes"] for line in metrics(out)] == [8] * 4
    assert all(line["mismatch"] < 1e-3 for line in metrics(out) if "mismatch" in line)
    with engine(model, tmp_path / "fifth", "--can-sleep", "--dev-mode", key=KEY) as whole:
        again = run(whole.url, 5, "engine.sleep=true", "engine.weights=full")
        assert again.returncode == 0, again.stderr[-3000:]
        assert {path for path, _ in whole.posts()} >= {"/collective_rpc", "/reset_encoder_cache", "/wake_up"}
        _assert_exact(out, model, iteration=4)
    said = "".join(path.read_text(errors="replace") for path in out.glob("*.*") if path.is_file())
    assert KEY not in said + done.stdout + lost.stderr


def _assert_exact(out: Path, model: Path, iteration: int) -> None:
    agent = VlmSettings(model=str(model), lora=LoraSettings(r=2), max_new_tokens=2).build(PHONE_SPEC)()
    agent.load_state_dict(load_file(out / "checkpoints" / f"{iteration:06d}" / "policy.safetensors"))
    episodes = parquet.read(out / "trajectories" / f"{iteration:06d}.parquet")
    steps = [step for episode in episodes for step in episode.steps]
    with torch.no_grad():
        computed = agent.log_prob([step.observation for step in steps], [step.action for step in steps])
    assert steps and torch.allclose(computed, torch.tensor([step.log_prob for step in steps]), atol=1e-4)
    assert all(len(step.token_log_probs) == len(step.action["tokens"]) > 0 for step in steps)
