"""TRL's own trainers, unmodified, over SSH workers of which one is killed; the model is a tiny one."""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_watch import eventually, kill_a_worker_program, ssh_server
from tiny_model import TAPS, make_tiny_model

from digirl_dist import Decision, Fleet, Run, Task
from digirl_dist.errors import SettingsError, WorkerError
from digirl_dist.trajectory import Observation

pytest.importorskip("trl")

ROWS, GROUP, STEPS = 8, 4, 10
ATTENTION = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def flash_attn_varlen_func(q, k, v, starts_q, starts_k, most_q, most_k, softmax_scale=None, causal=True, **_):
    rows = zip(starts_q.tolist(), starts_q.tolist()[1:], starts_k.tolist(), starts_k.tolist()[1:])
    seen = []
    for a, b, c, d in rows:
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - b + a)
        heads = [each.transpose(0, 1) for each in (q[a:b], k[c:d], v[c:d])]
        seen.append(scaled_dot_product_attention(*heads, attn_mask=mask, scale=softmax_scale).transpose(0, 1))
    return torch.cat(seen)
"""
KERNEL = {"id": "flash_attn3_cpu", "name": "flash-attn3", "version": 1, "license": "BSD-3-Clause"}


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TRL's asynchronous GRPO asks of a GPU: its name, and FlashAttention, which has a variable for one's own."""
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "CPU")
    variant = tmp_path / "kernel" / "torch-cpu"
    variant.mkdir(parents=True)
    (variant / "__init__.py").write_text(ATTENTION)
    (variant / "metadata.json").write_text(json.dumps({**KERNEL, "python-depends": [], "backend": {"type": "cpu"}}))
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/flash-attn3={variant.parent}")


def trainer_of(model: Path, folder: Path, rollouts: Any, acting: Any) -> Any:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    config = AsyncGRPOConfig(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        num_generations=GROUP,
        token_budget=0,  # so many rows per step instead
        learning_rate=1e-2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
    )
    prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": "the fleet has the tasks"}]]})
    return AsyncGRPOTrainer(str(model), [_unused], config, prompts, rollout_worker=rollouts, weight_transfer=acting)


def _unused(completions: Any, **_: Any) -> list[float]:
    raise AssertionError("the emulator gives the rewards")


def _after(step: int | None, act: Callable[[], object]) -> Any:
    """A callback after one step, or after each."""
    from transformers import TrainerCallback

    class After(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, control: Any, **more: Any) -> None:
            if step in (state.global_step, None):
                act()

    return After()


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_asynchronous_grpo_learns_ten_steps_from_two_workers_of_which_one_is_killed(
    tmp_path: Path, no_gpu: None
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from digirl_dist.bridges.trl import FleetRollouts
    from digirl_dist.bridges.writing_model import WritingModel

    kept = str(tmp_path / "kept")
    with Fleet.dry_run(2, bsize=2, emulator="phone", max_steps=2, save_path=kept) as fleet:
        words = [word for task in fleet.tasks for word in task.instruction.split()]
        model = make_tiny_model(tmp_path / "model", words)
        tokenizer = AutoTokenizer.from_pretrained(model)
        acting = WritingModel(AutoModelForCausalLM.from_pretrained(model), tokenizer, max_new_tokens=1)
        before = {name: weight.clone() for name, weight in acting._model.named_parameters()}
        rollouts = FleetRollouts(fleet, acting, group_size=GROUP, key="grpo")
        trainer = trainer_of(model, tmp_path / "trained", rollouts, acting)
        trainer.add_callback(_after(3, lambda: kill_a_worker_program(kept)))
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert trainer.state.global_step == STEPS and len(log) == STEPS
    assert all(math.isfinite(entry["reward"]) for entry in log)
    assert any(not weight.equal(before[name]) for name, weight in acting._model.named_parameters()), "it acts with news"
    episodes = Run(kept).episodes().to_pandas()
    assert episodes.policy_version.nunique() > 3 and not episodes.key.duplicated().any()
    assert not rollouts._thread.is_alive()
    events = [json.loads(line)["event"] for line in (tmp_path / "kept" / "events.jsonl").read_text().splitlines()]
    assert "worker_lost" in events


CALLS = [f"<tool_call>\n{json.dumps({'name': 'act', 'arguments': {'action': tap}})}\n</tool_call>" for tap in TAPS]


def calling_model() -> tuple[Any, Any]:
    """A tiny model that reads letters, and its tokenizer; each of its further words is a call of the tool."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen2_5_chat_template

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    ends = {"pad_token": "<pad>", "eos_token": "<|im_end|>", "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, **ends)
    tokenizer.add_tokens(CALLS)
    tokenizer.chat_template = qwen2_5_chat_template
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ids, vocab_size=len(tokenizer))), tokenizer


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_grpo_learns_ten_steps_in_environments_of_two_workers_of_which_one_is_killed_and_losses_are_no_rewards(
    tmp_path: Path,
) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from digirl_dist.bridges.openenv import openenv_fleet
    from digirl_dist.bridges.trl_environment import FleetEnvironment

    model, tokenizer = calling_model()
    before = [weight.clone() for weight in model.parameters()]
    config = GRPOConfig(
        str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        num_generations=GROUP,
        max_completion_length=1024,
        max_tool_calling_iterations=2,
        generation_kwargs={"max_new_tokens": 1, "suppress_tokens": list(range(len(tokenizer) - len(CALLS)))},
        learning_rate=1e-2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
    )
    lost = 10**6
    rows = {"prompt": [[{"role": "user", "content": "Do it. "}]] * STEPS, "split": ["train"] * STEPS}
    tasks = Dataset.from_dict({**rows, "index": [*range(STEPS - 1), lost]})
    told: list[tuple[float, float]] = []
    with openenv_fleet(["dry_run=true", "emulator=phone", "task_set=easy", "max_steps=2"]) as fleet:
        made = partial(FleetEnvironment, fleet)
        trainer = GRPOTrainer(
            model, args=config, train_dataset=tasks, processing_class=tokenizer, environment_factory=made
        )
        trainer.add_callback(_after(4, lambda: ssh_server("localhost-0").send_signal(signal.SIGKILL)))
        rewards, advantages = trainer._logs["rewards"]["FleetEnvironment"], trainer._logs["advantages"]
        trainer.add_callback(_after(None, lambda: told.extend(list(zip(rewards, advantages, strict=True))[-ROWS:])))
        trainer.train()
        assert fleet.moved and fleet.workers["localhost-1"] > GROUP
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert trainer.state.global_step == STEPS == len(log) and len(told) == STEPS * ROWS
    assert [entry["tools/failure_frequency"] for entry in log] == [0.0] * STEPS
    assert all(entry["tools/call_frequency"] > 1.0 for entry in log), "episodes go on after the first touch"
    without = [advantage for reward, advantage in told if math.isnan(reward)]
    assert without == [0.0] * 2 * GROUP, "the row that cannot begin comes twice, and is never a reward of 0"
    assert {reward for reward, _ in told if not math.isnan(reward)} == {0.0, 1.0}
    assert any(not weight.equal(old) for weight, old in zip(model.parameters(), before, strict=True))


COUNTER: dict[str, Any] = {"name": "custom", "entry_point": "user_classes:Counter"}


def spoken(observations: Sequence[Observation]) -> list[Decision]:
    return [Decision(1, -1.5, [-1.0, -0.5], [3, 4], [5, 6, 7]) for _ in observations]


@pytest.mark.system
def test_rows_have_what_was_read_and_written_and_a_loss_is_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from digirl_dist.bridges.trl import FleetRollouts

    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    dies = Task("bad", params={"at": "reset", "suffers": "die"})
    with Fleet.inline(bsize=2, emulator=COUNTER, limits={"episode_attempts": 2}) as fleet:
        rollouts = FleetRollouts(fleet, spoken, [Task("fine"), dies], group_size=2)
        rollouts.update_model_version(7)
        rollouts.start()
        rows = [rollouts.rollout_buffer.get(timeout=60) for _ in range(6)]
        rollouts._thread.join(60)
        with pytest.raises(WorkerError, match="its tasks are used up"):
            rollouts.check_health(60.0)
        rollouts.stop()
    assert rollouts.rollout_buffer.empty(), "a lost rollout is no row"
    assert rollouts.metrics_queue.get_nowait() == {"rollouts/lost_environment_total": 2.0}
    for row in rows:
        assert row.input_ids.tolist() == [5, 6, 7, 3, 4] and row.completion_mask.tolist() == [0, 0, 0, 1, 1]
        assert row.old_log_probs.tolist() == [0.0, 0.0, 0.0, -1.0, -0.5] and row.model_version == 7
        assert row.metrics == {"reward": 3.0, "reward_std": 0.0} and row.advantage == 0.0


@pytest.mark.system
def test_a_row_has_the_version_that_decided_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL drops rows that are too old, and the late ones of a long episode are not."""
    from digirl_dist.bridges.trl import FleetRollouts

    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    second, updated = threading.Event(), threading.Event()

    def act(observations: Sequence[Observation]) -> list[Decision]:
        if observations[0].vector is not None and observations[0].vector[0] == 1:
            second.set()
            assert updated.wait(60)
        return spoken(observations)

    with Fleet.inline(bsize=1, emulator=COUNTER) as fleet:
        rollouts = FleetRollouts(fleet, act, [Task("fine")], group_size=1)
        rollouts.update_model_version(7)
        rollouts.start()
        assert second.wait(60)
        rollouts.update_model_version(8)
        updated.set()
        rows = [rollouts.rollout_buffer.get(timeout=60) for _ in range(3)]
        rollouts.stop()
    assert [row.model_version for row in rows] == [7, 7, 8]


@pytest.mark.system
def test_whoever_stops_waits_for_no_episode_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from digirl_dist.bridges.trl import FleetRollouts

    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    hangs = Task("hangs", params={"at": "step", "suffers": "hang"})
    with Fleet.inline(bsize=1, emulator=COUNTER, limits={"step_s": 600.0}) as fleet:
        rollouts = FleetRollouts(fleet, spoken, [hangs], group_size=1)
        rollouts.start()
        eventually(lambda: [one for one in fleet.status().values() if one["slots"]])
        rollouts.stop()
        assert not rollouts._thread.is_alive()
        rollouts.check_health(60.0)


@pytest.mark.system
def test_an_action_without_tokens_ends_the_training_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from digirl_dist.bridges.trl import FleetRollouts

    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    with Fleet.inline(bsize=1, emulator=COUNTER) as fleet:
        rollouts = FleetRollouts(fleet, lambda seen: [1 for _ in seen], [Task("fine")], group_size=1)
        rollouts.start()
        rollouts._thread.join(60)
        with pytest.raises(WorkerError, match="came without tokens.*act with a WritingModel"):
            rollouts.check_health(60.0)


@pytest.mark.component
def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from digirl_dist.bridges.writing_model import WritingModel

    model = make_tiny_model(tmp_path, ["go"])
    acting = WritingModel(AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model))
    with pytest.raises(SettingsError, match=r"no weight model.x of shape \[3\]: load it from the checkpoint"):
        acting.send_weights(iter([("model.x", torch.zeros(3))]))
    [decision] = acting([Observation("go there")])
    assert decision.action["type"] in ("tap", "wait") and len(decision.tokens) == len(decision.token_log_probs) > 0
    assert math.isclose(decision.log_prob, sum(decision.token_log_probs)) and len(decision.prompt_tokens) == 2


@pytest.mark.component
def test_a_model_writes_and_reports_what_its_weights_say_whatever_its_generation_config_has(tmp_path: Path) -> None:
    """A trainer computes log-probabilities from the weights and the temperature alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from digirl_dist.bridges.writing_model import WritingModel

    folder = make_tiny_model(tmp_path, ["go", "there"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    biases = {"repetition_penalty": 5.0, "min_p": 0.9, "no_repeat_ngram_size": 1, "suppress_tokens": [4, 5, 6]}
    for name, value in biases.items():
        setattr(model.generation_config, name, value)
    acting = WritingModel(model, tokenizer, max_new_tokens=20, temperature=0.5)
    for decision in acting([Observation("go there"), Observation("go")]):
        read = [*decision.prompt_tokens, *decision.tokens]
        with torch.no_grad():
            scores = (model(torch.tensor([read])).logits[0].float() / 0.5).log_softmax(-1)
        first = len(decision.prompt_tokens)
        own = [float(scores[place - 1, read[place]]) for place in range(first, len(read))]
        assert [*decision.token_log_probs] == pytest.approx(own, abs=1e-4)
        assert len(decision.tokens) == 20 or decision.tokens[-1] == tokenizer.eos_token_id
