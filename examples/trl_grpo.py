"""TRL's GRPOTrainer, as it is, with OpenEnv environments on four SSH workers.

    pip install trl openenv 'digirl_dist[openenv]' && openenv init echo_env
    python examples/trl_grpo.py echo_env [--kill] [words]

Without words, the workers are localhost ones behind real SSH servers (dry_run=true); with worker_ips=[…], yours.
``--kill`` kills one of the localhost workers half-way. The model is a tiny one that writes letters.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import psutil
import torch
from datasets import Dataset
from openenv.core import GenericEnvClient
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from digirl_dist.bridges.openenv import OpenEnvFleet, openenv_fleet

STEPS, ROLLOUTS, TURNS = 10, 4, 3
LETTERS = "abcdefgh."


class Echoes:
    """Episodes of ``TURNS`` messages in OpenEnv's echo environment, one client for each rollout of a step."""

    def __init__(self, fleet: OpenEnvFleet) -> None:
        self.clients = [
            GenericEnvClient(provider=fleet.provider(), message_timeout_s=300).sync() for _ in range(ROLLOUTS)
        ]
        self.kills_a_worker = False
        self._halfway = Barrier(ROLLOUTS, self._meanwhile)
        self.done: list[list[tuple[str, int]]] = []
        """What was echoed in each rollout, and the environment's own number of that step."""

    def rewards(self, texts: list[str]) -> list[float]:
        with ThreadPoolExecutor(ROLLOUTS) as pool:
            return list(pool.map(self._rollout, self.clients, texts))

    def _rollout(self, client: Any, text: str) -> float:
        client.reset()
        told, reward = [], 0.0
        for turn in range(TURNS):
            if turn == 1:
                self._halfway.wait()
            answer = client.step({"message": text[turn::TURNS].strip(".")})
            told.append((answer.observation["echoed_message"], answer.observation["metadata"]["step"]))
            reward += answer.reward
        self.done.append(told)
        return reward

    def _meanwhile(self) -> None:
        """In the middle of all episodes."""
        if self.kills_a_worker:
            kill_a_worker()


def tiny_model() -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    torch.manual_seed(0)
    vocabulary = {letter: number for number, letter in enumerate(["<pad>", "<end>", *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<end>")
    tokenizer.padding_side = "left"
    sizes = {"vocab_size": len(vocabulary), "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**sizes, **still, bos_token_id=1, eos_token_id=1, pad_token_id=0)
    return GPT2LMHeadModel(config), tokenizer


def rollouts(echoes: Echoes, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
    """What TRL calls in each step: completions, their log-probabilities, and the environment's rewards."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    given = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        written = model.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            num_return_sequences=ROLLOUTS // len(prompts),
            do_sample=True,
            max_new_tokens=24,
            output_logits=True,
            return_dict_in_generate=True,
        )
    width = given["input_ids"].shape[1]
    logits = torch.stack(written.logits, 1).log_softmax(-1)
    answers = written.sequences[:, width:]
    log_probs = logits.gather(2, answers[:, :, None])[:, :, 0]
    kept = [[index for index, token in enumerate(row) if token != tokenizer.pad_token_id] for row in answers.tolist()]
    texts = ["".join(LETTERS[token - 2] for token in row if token > 1) for row in answers.tolist()]
    return {
        "prompt_ids": [row[row != tokenizer.pad_token_id].tolist() for row in written.sequences[:, :width]],
        "completion_ids": [row[chosen].tolist() for row, chosen in zip(answers, kept, strict=True)],
        "logprobs": [row[chosen].tolist() for row, chosen in zip(log_probs, kept, strict=True)],
        "echo_reward": echoes.rewards(texts),
    }


def echo_reward(completions: list[str], echo_reward: list[float], **_: Any) -> list[float]:
    return echo_reward


def kill_a_worker() -> None:
    """As if the machine of the first localhost worker had lost its power."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, IndexError):
            if process.cmdline()[-1].endswith("ssh/localhost-0"):
                for each in [process, *process.children(recursive=True)]:
                    each.send_signal(signal.SIGKILL)


@contextmanager
def trainer_of(echoes: Echoes, is_killing: bool) -> Iterator[GRPOTrainer]:
    model, tokenizer = tiny_model()

    def roll_out(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        echoes.kills_a_worker = is_killing and trainer.state.global_step == STEPS // 2
        return rollouts(echoes, prompts, trainer)

    with TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=ROLLOUTS,
            max_completion_length=24,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            use_cpu=True,
            seed=0,
        )
        prompts = Dataset.from_dict({"prompt": ["abc"] * STEPS * ROLLOUTS})
        yield GRPOTrainer(model, echo_reward, config, prompts, processing_class=tokenizer, rollout_func=roll_out)


def main(project: str, words: list[str]) -> None:
    is_killing = "--kill" in words
    overrides = [word for word in words if word != "--kill"] or ["dry_run=true", "dry_run_workers=4"]
    environment = ["emulator=openenv", "emulator.app=server.app:app", f"emulator.project={Path(project).resolve()}"]
    with openenv_fleet([*environment, *overrides]) as fleet:
        echoes = Echoes(fleet)
        with trainer_of(echoes, is_killing) as trainer:
            trainer.train()
            log = [entry for entry in trainer.state.log_history if "reward" in entry]
        print(f"servers on {fleet.workers}; lost: {fleet.moved or 'none'}")
        for client in echoes.clients:
            client.close()
    assert trainer.state.global_step == STEPS and len(echoes.done) == STEPS * ROLLOUTS
    assert all([number for _, number in rollout] == [1, 2, 3] for rollout in echoes.done), (
        "a step was lost, or done twice"
    )
    first, last = log[0]["reward"], log[-1]["reward"]
    print(f"{len(echoes.done)} rollouts of {TURNS} steps, each once; reward {first:.2f} -> {last:.2f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
