"""A fleet's environments in verifiers: a taskset, an env that holds the workers, and a harness that plays on them.

verifiers' own environment server serves them, its own client asks for rollouts, and its interception records tokens
and log-probabilities. An episode whose worker is lost is repeated on another one, without asking the model again; if
that fails, the trace has an error and no reward.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from digirl_dist.agent.prompts import conversation
from digirl_dist.bridges.openenv import OpenEnvFleet, openenv_fleet, task_api
from digirl_dist.bridges.text_episode import TextEpisode
from digirl_dist.chat import Messages, image_part
from digirl_dist.errors import SettingsError
from digirl_dist.settings.extras import extra_needed

with extra_needed("bridges.verifiers", "verifiers and httpx", "verifiers"):
    import httpx
    import verifiers.v1 as vf

__all__ = ["FleetEnv", "FleetHarness", "FleetTaskset"]

_ANSWER_S = 600.0


class FleetTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    overrides: list[str] = []  # noqa: RUF012 - pydantic copies it
    """Settings, as on the command line: ``emulator=phone``, ``worker_ips=[10.0.0.2,10.0.0.3]``."""
    split: str = "train"


class FleetTaskData(vf.TaskData):  # type: ignore[misc]
    split: str
    index: int
    seed: int | None = None
    """How the episode starts; None: it follows from the task."""


class FleetTask(vf.Task[FleetTaskData]):  # type: ignore[misc]
    @vf.reward  # type: ignore[untyped-decorator]
    async def episode_reward(self, trace: vf.Trace) -> float:
        """The sum of the episode's rewards."""
        return float(trace.info["reward"])


class FleetTaskset(vf.Taskset[FleetTask, FleetTasksetConfig]):  # type: ignore[misc]
    def load(self) -> Iterator[FleetTask]:
        split = self.config.split
        for task in task_api(self.config.overrides).list_tasks(split):
            place = {"idx": task["index"], "index": task["index"], "split": split}
            yield FleetTask(FleetTaskData(name=task["id"], prompt=task["instruction"], **place), self.config.task)


class FleetHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    pictures: bool = False
    """Whether the model is shown screenshots."""


class FleetHarness(vf.Harness[FleetHarnessConfig]):  # type: ignore[misc]
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    fleet: OpenEnvFleet | None = None
    """FleetEnv sets it: verifiers makes a harness for each episode."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: FleetTaskData,
    ) -> vf.ProgramResult:
        """Plays one episode. Raises EmulatorError if its environment is lost for good."""
        if self.fleet is None:
            raise SettingsError("FleetHarness has no workers: export FleetEnv in the __all__ of the taskset's module")
        episode = TextEpisode(self.fleet.converse())
        start = {"split": data.split, "index": data.index, "seed": data.seed}
        thread = ThreadPoolExecutor(1)
        on_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        try:
            seen = await on_thread(episode.begin, start)
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=_ANSWER_S) as model:
                while not episode.is_over:
                    chat = self._chat(data.system_prompt or "", seen)
                    answer = await model.post(
                        f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": chat}
                    )
                    answer.raise_for_status()
                    said = answer.json()["choices"][0]["message"]["content"] or ""
                    seen = await on_thread(episode.act, said)
        finally:
            thread.submit(episode.close)  # once it has returned from what a cancelled rollout waited for
            thread.shutdown(wait=False)
        trace.info["reward"] = episode.reward
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    def _chat(self, system: str, seen: dict[str, Any]) -> Messages:
        picture = image_part(base64.b64decode(seen["image"])) if self.config.pictures and seen.get("image") else None
        chat = conversation(seen["text"], picture, system)
        return [{**message, "content": [part for part in message["content"] if part]} for message in chat]


class FleetEnv(vf.SingleAgentEnv):  # type: ignore[misc]
    """Holds the workers of the taskset's settings while its episodes are served."""

    async def start(self) -> None:
        """Connects to the workers. Raises SettingsError or WorkerError."""
        self._stack = ExitStack()
        self._fleet = await asyncio.to_thread(self._stack.enter_context, openenv_fleet(self.config.taskset.overrides))

    async def stop(self) -> None:
        await asyncio.to_thread(self._stack.close)

    async def setup(self, agents: vf.Agents) -> None:
        agents.agent.harness.fleet = self._fleet
