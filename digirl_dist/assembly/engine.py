"""The inference server that acts for a run: found exact, or refused, before anything is collected."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from digirl_dist.agent.plugins.vlm import VlmSettings
from digirl_dist.agent.vlm.served import Exactness, ServedVlm
from digirl_dist.assembly.parts import placed
from digirl_dist.chat.client import Outage
from digirl_dist.chat.engine_servers import EngineServer, engine_server
from digirl_dist.errors import SettingsError
from digirl_dist.inference.engine_policies import EnginePolicies, Outages, SleepingAgent
from digirl_dist.inference.spread import SpreadAgent
from digirl_dist.settings import OpenAIEngineSettings
from digirl_dist.settings.paths import expanded

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext


def build_engine(context: RunContext, engine: OpenAIEngineSettings) -> EnginePolicies:
    """Returns what acts for all workers through one server, or several.

    Raises ChatError for a server that cannot be used, SettingsError for one whose log-probabilities are others.
    """
    outages = Outages(context.events, context.status, ", ".join(engine.urls))
    is_alone = len(engine.urls) == 1
    servers = [engine_server(settings, outages if is_alone else _unheard) for settings in engine.servers]
    compared = _compared(context, engine, servers)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    spread = SpreadAgent(compared, engine.outage_s, outages)
    agent: SleepingAgent = compared[0] if is_alone else spread
    if engine.sleep:  # a server that cannot shall say so now
        agent.sleep()
        agent.wake()

    def close() -> None:
        spread.close()
        for server in servers:
            server.close()

    sleeper = agent if engine.sleep else None
    return EnginePolicies(agent, context.settings.inference_batch, outages, close, sleeper=sleeper)


def _unheard(_: Outage) -> None:
    """The loss of one of several servers is told by who spreads the requests."""


def _compared(context: RunContext, engine: OpenAIEngineSettings, servers: list[EngineServer]) -> list[ServedVlm]:
    """Builds the agent, compares each server with it, and lets it go."""
    context.status.host("compare the servers of engine.url with agent.model")
    folder = expanded(engine.adapters, "engine.adapters") if engine.adapters else context.folder.root / "adapters"
    settings = context.settings.agent
    assert isinstance(settings, VlmSettings)
    with torch.random.fork_rng(devices=[]):
        agent: Any = placed(context.settings, context.agent)()
    found = [ServedVlm(agent, server, folder, context.folder.run_id) for server in servers]
    for served in found:
        served.clear()
    for served, server in zip(found, servers, strict=True):
        exactness = served.check(agent)
        context.events.emit("engine_checked", url=server.url, **asdict(exactness))
        if not exactness.mean <= min(engine.tolerance, exactness.without):
            raise SettingsError(_inexact(engine, server.url, exactness))
    agent.cpu()  # the servers have the memory of the GPUs
    return found


def _inexact(engine: OpenAIEngineSettings, url: str, found: Exactness) -> str:
    prompts = f"; {found.prompts}" if found.prompts else ""
    ignored = ""
    if found.without < found.mean:
        ignored = f"; without low-rank weights {found.without:.3g}, as if it ignored them"
    return (
        f"engine.url={url}: its log-probabilities are {found.mean:.3g} nats per token off those of "
        f"agent.model (the largest of {found.answers} answers {found.largest:.3g}, engine.tolerance="
        f"{engine.tolerance:g}){ignored}{prompts} -> let it serve agent.model itself, with agent.dtype; with vLLM add "
        "--logprobs-mode processed_logprobs; if its LoRA leaves out the layers that see, so must agent.lora.exclude"
    )
