"""The weights of ``agent=vlm`` in an inference server, which acts with them."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from digirl_dist.agent.prompts import task_text
from digirl_dist.agent.sampling import Answer
from digirl_dist.agent.vlm.agent import VlmAgent
from digirl_dist.chat import image_part
from digirl_dist.chat.client import Sampled
from digirl_dist.chat.engine_servers import EngineServer
from digirl_dist.emulator.touch_actions import TOKENS
from digirl_dist.errors import ChatRefused, SettingsError
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_NEVER = -100
"""The least bias of a token that servers take: as good as barred."""
_PROBES = 4
_PROBE_SCALE = 0.05


@dataclass(frozen=True)
class Exactness:
    """By how much log-probabilities of a server differ from those that the agent computes for the same answers."""

    answers: int
    tokens: int
    mean: float
    """Sum of the absolute differences of answers, divided by the number of tokens, in nats."""
    largest: float
    """Largest absolute difference of an answer, in nats."""
    without: float
    """``mean`` if the agent leaves its low-rank weights out: less than with them if the server ignores them."""
    prompts: str
    """How the prompts differ; empty if they do not, or if the server does not tell its own."""


class ServedVlm:
    """Fulfils ``ServedAgent``. Each version has a name, of the version and a digest of its low-rank weights.

    So no name ever stands for other weights, whatever a server kept of an earlier process or put into its caches.
    """

    def __init__(self, agent: VlmAgent, server: EngineServer, folder: Path, run: str) -> None:
        """``agent`` tells how the model speaks and what adapters look like; it is kept if the server takes the whole
        model. ``folder`` is where server and host hand weights over.
        """
        self._wording, self._config = agent.wording, copy.copy(agent.adapter_config)
        self._config.base_model_name_or_path, self._config.inference_mode = agent.model, True
        self._server, self._folder, self._run = server, folder.absolute(), run
        self._request = _request(agent)
        self._whole = agent if server.is_whole else None

    def clear(self) -> None:
        """Removes what earlier processes of this run left in the server and on disk. Raises ChatError."""
        for adapter in self._server.loaded():
            if adapter.startswith(f"{self._run}-"):
                self._server.unload(adapter)
        for left in self._folder.glob(f"{self._run}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def load(self, version: int | str, state: Mapping[str, torch.Tensor]) -> str:
        """Hands over the weights of a version; returns the name by which the server knows them."""
        content = save({name: tensor.contiguous().cpu() for name, tensor in state.items()})
        adapter = f"{self._run}-v{version}-{hashlib.sha256(content).hexdigest()[:12]}"
        if not (self._folder / adapter).exists():
            self._write(adapter, state, content)
        self._server.load(adapter, self._folder / adapter)
        return adapter

    def unload(self, adapter: str) -> None:
        """Makes the server forget weights, and removes them from the folder."""
        self._server.unload(adapter)
        shutil.rmtree(self._folder / adapter, ignore_errors=True)

    def decide(self, adapter: str, observation: Observation, rng: np.random.Generator) -> Decision:
        """Returns one decision by the weights of that name."""
        sampled = self._sample(adapter, observation, rng)
        answer = Answer(sampled.tokens, sampled.log_probs)
        return answer.decision(self._wording.action(answer, observation))

    def sleep(self) -> None:
        """Makes the server release memory of its GPU until ``wake``."""
        self._server.sleep()

    def wake(self) -> None:
        """Makes it ready to answer again."""
        self._server.wake()

    def check(self, agent: VlmAgent) -> Exactness:
        """Compares log-probabilities with those of ``agent``, which is fresh, and has weights that matter meanwhile.

        Fresh low-rank weights change nothing, so a server that ignored them could not be told.
        """
        randomness = torch.Generator().manual_seed(0)
        fresh = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
        state = {
            name: tensor if "lora_A" in name else _PROBE_SCALE * torch.randn(tensor.shape, generator=randomness)
            for name, tensor in fresh.items()
        }
        adapter = self.load("probe", state)
        try:
            screens = [_screen(number, agent.image_size) for number in range(_PROBES)]
            answers = [self._sample(adapter, seen, np.random.default_rng(at)) for at, seen in enumerate(screens)]
        finally:
            self.unload(adapter)
        agent.load_state_dict(fresh)  # a server of whole weights had others merged
        without = self._apart(agent, screens, answers)
        agent.load_state_dict(state)
        with_them = self._apart(agent, screens, answers)
        agent.load_state_dict(fresh)
        tokens = sum(len(answer.tokens) for answer in answers)
        prompts = _prompts(agent, screens[0], answers[0])
        return Exactness(len(answers), tokens, sum(with_them) / tokens, max(with_them), sum(without) / tokens, prompts)

    def _apart(self, agent: VlmAgent, screens: list[Observation], answers: list[Sampled]) -> list[float]:
        """By how much the log-probability of each answer is off the agent's."""
        actions: list[Json] = [{TOKENS: answer.tokens} for answer in answers]
        with torch.no_grad():
            computed = agent.log_prob(screens, actions).double().cpu().tolist()
        return [abs(sum(answer.log_probs) - own) for answer, own in zip(answers, computed, strict=True)]

    def _write(self, adapter: str, state: Mapping[str, torch.Tensor], content: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = Path(mkdtemp(dir=self._folder, prefix=f"{self._run}-part-"))
            part.chmod(0o755)
            if self._whole:
                self._whole.load_state_dict(state)
                self._whole.save_merged(part)
            else:
                (part / "adapter_model.safetensors").write_bytes(content)
                self._config.save_pretrained(str(part))
            with suppress(FileExistsError):
                os.rename(part, self._folder / adapter)
        except OSError as error:
            raise SettingsError(f"engine.adapters={self._folder} cannot be written: {error.strerror}") from error

    def _sample(self, adapter: str, seen: Observation, rng: np.random.Generator) -> Sampled:
        """Raises ChatRefused for an answer that this model cannot have written so."""
        chat = self._wording.chat(seen, image_part)
        request = {**self._request, "seed": int(rng.integers(2**31))}
        try:
            sampled = self._server.sample(adapter, chat, request)
        except ChatRefused:
            if adapter in self._server.loaded():
                raise
            self._server.load(adapter, self._folder / adapter)  # the server was started again
            sampled = self._server.sample(adapter, chat, request)
        self._refuse(sampled)
        return sampled

    def _refuse(self, sampled: Sampled) -> None:
        tokens, sampling = sampled.tokens, self._wording.sampling
        if not self._wording.can_say(tokens):
            raise ChatRefused("the server of engine.url sends tokens that agent.model does not have, or cannot say")
        ended = next((place + 1 for place, token in enumerate(tokens) if token in sampling.ends), sampling.length)
        if len(tokens) != ended or ended > sampling.length:
            raise ChatRefused(
                f"the server of engine.url ended an answer after {len(tokens)} of {sampling.length} tokens, and not at "
                "one of agent.model's ends: its log-probability would not be that of the answer"
            )


def _request(agent: VlmAgent) -> dict[str, Json]:
    """What makes a server draw from the distribution of ``agent.temperature`` and no other.

    Models bring defaults of their own (``generation_config.json``), which servers apply to what a request leaves out.
    """
    sampling = agent.wording.sampling
    request: dict[str, Json] = {
        "max_tokens": sampling.length,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(sampling.ends),
        "skip_special_tokens": False,
    }
    if sampling.barred:
        request["logit_bias"] = {str(token): _NEVER for token in sampling.barred}
    if agent.processor_arguments:
        request["mm_processor_kwargs"] = agent.processor_arguments
    return request


def _screen(number: int, size: tuple[int, int]) -> Observation:
    """A screenshot [H, W, 3] of large random squares, which scaling does not make grey."""
    squares = np.random.default_rng(number).integers(256, size=(6, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(squares).resize((size[1], size[0]), Image.Resampling.NEAREST).save(file, "PNG")
    return Observation(task_text(f"open number {number}", []), file.getvalue())


def _prompts(agent: VlmAgent, seen: Observation, sampled: Sampled) -> str:
    own, told = agent.prompt(seen), sampled.prompt
    if told is None or told == own:
        return ""
    alike = next((place for place, (one, other) in enumerate(zip(own, told, strict=False)) if one != other), -1)
    return f"its prompt has {len(told)} tokens, that of agent.model {len(own)}; the first {alike} are alike"
