"""Rollouts of verifiers' own client from verifiers' own environment server: python verifiers_rounds.py FOLDER

Runs in an environment with verifiers. One of the two SSH workers is killed between the rounds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import verifiers.v1 as vf
from process_watch import ssh_server
from tiny_model import make_tiny_model
from verifiers.v1.serve import EnvClient, EnvServer
from verifiers.v1.utils.loaders import load_taskset

ROUNDS, GROUP = 10, 2
PLUGIN = """
from digirl_dist.bridges.verifiers import FleetEnv, FleetHarness, FleetTaskset
__all__ = ["FleetEnv", "FleetHarness", "FleetTaskset"]
"""
PATIENT = ["limits.boot_s=900", "limits.reset_s=600", "limits.step_s=600"]
"""On a loaded machine nothing is lost but what is killed."""
OVERRIDES = ["emulator=phone", "dry_run=true", "max_steps=2", "task_set=easy", *PATIENT]


def model_server(folder: Path) -> ThreadingHTTPServer:
    """OpenAI's chat completions by a tiny model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    make_tiny_model(folder, [])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    acting = threading.Lock()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert any(part["text"] for part in asked["messages"][-1]["content"])
            with acting, torch.inference_mode():
                written = model.generate(torch.tensor([[2]]), do_sample=True, max_new_tokens=1, top_k=0)
            message = {"role": "assistant", "content": tokenizer.decode(written[0, 1:], skip_special_tokens=True)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
            answer = json.dumps({**body, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def kill_a_worker() -> None:
    """As if its machine had lost its power."""
    server = ssh_server("localhost-0")
    for each in [server, *server.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended with the one before
            each.kill()


def errors_of(episode: Any) -> list[Any]:
    return [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]


async def main(folder: Path) -> None:
    (folder / "phone_env.py").write_text(PLUGIN)
    sys.path.insert(0, str(folder))
    plugin, agent = {"id": "phone_env", "overrides": OVERRIDES}, {"runtime": {"type": "subprocess"}}
    config = vf.SingleAgentEnvConfig.model_validate({"taskset": plugin, "agent": agent})
    server = EnvServer(config, f"ipc://{folder}/door")
    serving = asyncio.create_task(server.run())
    client = EnvClient(server.address)
    while not await client.health():
        if serving.done():
            await serving  # raises what ended it
    url = f"http://127.0.0.1:{model_server(folder / 'model').server_port}/v1"
    asks = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY"), "tiny", vf.SamplingConfig()
    tasks = [task.data.model_dump(mode="json") for task in load_taskset(config.taskset)]
    told = []
    for number in range(ROUNDS):
        if number == ROUNDS // 2:
            kill_a_worker()
        episodes = await asyncio.gather(*(client.run(*asks, tasks[number % 4]) for _ in range(GROUP)))
        if wrong := [error for each in episodes for error in errors_of(each)]:
            raise RuntimeError(wrong[0])
        told.append([[each.ok, [trace.rewards["episode_reward"].value for trace in each.traces]] for each in episodes])
        assert all(len(trace.calls) == len(trace.branches) in (1, 2) for each in episodes for trace in each.traces)
    cancelled = asyncio.create_task(client.run(*asks, tasks[0]))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    lost = await client.run(*asks, {**tasks[0], "index": 10**6})  # an environment that cannot begin
    errors = [error.message for error in errors_of(lost)]
    rewards = [trace.rewards.get("episode_reward") for trace in lost.traces]
    sys.stdout.write(json.dumps({"rounds": told, "lost": {"ok": lost.ok, "errors": errors, "rewards": rewards}}) + "\n")
    sys.stdout.flush()
    await client.close()
    serving.cancel()
    await asyncio.wait([serving])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
