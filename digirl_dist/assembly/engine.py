"""The inference server that acts for a run: found exact, or refused, before anything is collected."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from digirl_dist.agent.plugins.vlm import VlmSettings
from digirl_dist.agent.vlm.served import Exactness, ServedVlm
from digirl_dist.assembly.parts import placed
from digirl_dist.chat.lora_server import LoraServer
from digirl_dist.errors import SettingsError
from digirl_dist.inference.engine_policies import EnginePolicies, Outages
from digirl_dist.settings import OpenAIEngineSettings
from digirl_dist.settings.paths import expanded

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext


def build_engine(context: RunContext, engine: OpenAIEngineSettings) -> EnginePolicies:
    """Returns what acts for all workers through a server.

    Raises ChatError for a server that cannot be used, SettingsError for one whose log-probabilities are others.
    """
    outages = Outages(context.events, context.status, engine.url)
    server = LoraServer(engine, outages)
    served = _compared(context, engine, server)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return EnginePolicies(served, context.settings.inference_batch, outages, server.close)


def _compared(context: RunContext, engine: OpenAIEngineSettings, server: LoraServer) -> ServedVlm:
    """Builds the agent, compares the server with it, and lets it go."""
    context.status.host("compare the server of engine.url with agent.model")
    folder = expanded(engine.adapters, "engine.adapters") if engine.adapters else context.folder.root / "adapters"
    settings = context.settings.agent
    assert isinstance(settings, VlmSettings)
    with torch.random.fork_rng(devices=[]):
        agent: Any = placed(context.settings, context.agent)()
    served = ServedVlm(agent, server, folder, context.folder.run_id)
    served.clear()
    exactness = served.check(agent)
    context.events.emit("engine_checked", **asdict(exactness))
    if not exactness.mean <= min(engine.tolerance, exactness.without):
        raise SettingsError(_inexact(engine, exactness))
    return served


def _inexact(engine: OpenAIEngineSettings, found: Exactness) -> str:
    prompts = f"; {found.prompts}" if found.prompts else ""
    ignored = ""
    if found.without < found.mean:
        ignored = f"; without low-rank weights {found.without:.3g}, as if it ignored them"
    return (
        f"engine.url={engine.url}: its log-probabilities are {found.mean:.3g} nats per token off those of "
        f"agent.model (the largest of {found.answers} answers {found.largest:.3g}, engine.tolerance="
        f"{engine.tolerance:g}){ignored}{prompts} -> let it serve agent.model itself, with agent.dtype; with vLLM add "
        "--logprobs-mode processed_logprobs; if its LoRA leaves out the layers that see, so must agent.lora.exclude"
    )
