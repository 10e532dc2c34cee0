"""The checks. Each takes the device and a folder of its own, and returns figures; what is wrong is raised."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.subjects import (
    ALGORITHMS,
    SUBJECTS,
    actions_of,
    algorithm,
    checkpointed_vlm,
    episodes,
    large_vlm,
    vlm_folder,
)
from digirl_dist.api.run import Run
from digirl_dist.collection import CollectionResult
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.peers import ALONE, Peers, SharedRows
from digirl_dist.parallel.rank import Rank
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trajectory import Trajectory

Figures = dict[str, float | str]
NEEDS_GPU = "needs a GPU"
"""The figure of a check, or of a part of one, that was left out on the CPU."""
_CLOSE = 2e-3
"""Largest difference of a log-probability between two devices; TF32 makes more of it in convolutions."""
_EXACT_ENOUGH = 1e-2
"""Largest difference by bfloat16 that a ratio of probabilities bears: 1 %."""
_SAME = 1e-5
_ON_CPU = 8
"""Steps whose log-probabilities are computed on the CPU as well."""


class CheckFailed(Exception):
    """What a check found wrong."""


@dataclass(frozen=True)
class Check:
    """One check and the seconds after which it is ended."""

    run: Callable[[str, Path], Figures]
    limit_s: float = 300.0


def updates(name: str, device: str, folder: Path) -> Figures:
    """Every algorithm with one agent: acts, learns and goes on after a resume on ``device``, as on the CPU."""
    found = SUBJECTS[name](folder, _is_cuda(device))
    agent, on_cpu = found.made(device), found.made()
    _require_on(device, agent)
    acted = episodes(agent, found, 8)
    seen, actions, told = actions_of(acted)
    with torch.no_grad():
        here, there = agent.log_prob(seen, actions).cpu(), on_cpu.log_prob(seen[:_ON_CPU], actions[:_ON_CPU])
    vs_cpu, vs_acting = _apart(here[:_ON_CPU], there), _apart(here, told)
    _require(max(vs_cpu, vs_acting) < _CLOSE, f"log-probabilities differ by {vs_cpu:.2g}, {vs_acting:.2g} from acting")
    figures: Figures = {"vs_cpu": vs_cpu, "vs_acting": vs_acting}
    for each in ALGORITHMS:
        figures[f"{each}_s"] = _learned(partial(found.made, device), each, acted, folder / each, ALONE)[1]
    return figures


def bf16(name: str, device: str, folder: Path) -> Figures:
    """Log-probabilities under bfloat16 autocast: how far off they are, and how much sooner they and gradients come."""
    found = SUBJECTS[name](folder, _is_cuda(device))
    agent = found.made(device)
    seen, actions, _ = actions_of(episodes(agent, found, 8))
    with torch.no_grad():
        exact = agent.log_prob(seen, actions)
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            rounded = agent.log_prob(seen, actions)
    _require(bool(rounded.isfinite().all()), "log-probabilities under autocast are not finite")

    def pass_back(autocast: bool) -> None:
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=autocast):
            _pass_back(agent, seen, actions)

    apart = _apart(exact, rounded)
    speedup = _seconds(partial(pass_back, False), device) / _seconds(partial(pass_back, True), device)
    return {"error": apart, "exact_enough": "yes" if apart < _EXACT_ENOUGH else "no", "speedup": speedup}


def compiled(name: str, device: str, folder: Path) -> Figures:
    """``torch.compile`` of the agent's modules: the same log-probabilities, and the time that a pass takes.

    On the CPU without generated code, which takes a compiler.
    """
    found = SUBJECTS[name](folder, _is_cuda(device))
    agent = found.made(device)
    seen, actions, _ = actions_of(episodes(agent, found, 8))
    pass_back = partial(_pass_back, agent, seen, actions)
    with torch.no_grad():
        before = agent.log_prob(seen, actions)
    eager_s = _seconds(pass_back, device)
    started = time.perf_counter()
    for module in agent.children():
        module.compile(backend="inductor" if _is_cuda(device) else "aot_eager")
    with torch.no_grad():
        after = agent.log_prob(seen, actions)
    pass_back()
    compile_s = time.perf_counter() - started
    apart = _apart(before, after)
    _require(apart < _CLOSE, f"log-probabilities differ by {apart:.2g} when compiled")
    return {"error": apart, "compile_s": compile_s, "speedup": eager_s / _seconds(pass_back, device)}


def one_rank(device: str, folder: Path) -> Figures:
    """A process group of one rank, which is NCCL's on CUDA: exchanges, and an update that equals that without one."""
    if not _is_cuda(device):
        return {"nccl": NEEDS_GPU}
    found = SUBJECTS["generic-vectors"](folder, True)
    acted = episodes(found.made(device), found, 8)
    with _group(device) as group:
        total = group.sum(torch.full((1024, 1024), 2.0, device=device))
        _require(bool((total == 2.0).all()) and group.largest(5) == 5, "an exchange changed what one rank gave")
        _require(group.broadcast(b"word") == b"word" and group.gather(b"word") == [b"word"], "bytes differ")
        group.check_in_step(b"0" * 32)
        together, seconds = _learned(partial(found.made, device), "filtered_bc", acted, folder / "a", SharedRows(group))
        sum_s = _seconds(lambda: group.sum(torch.ones(2**24, device=device)), device)
    alone, _ = _learned(partial(found.made, device), "filtered_bc", acted, folder / "b", ALONE)
    apart = _weights_apart(together, alone)
    _require(apart < _CLOSE, f"weights differ by {apart:.2g} from those of a process without ranks")
    return {"weights_vs_alone": apart, "update_s": seconds, "sum_64_mib_ms": 1000 * sum_s}


def fsdp2(device: str, folder: Path) -> Figures:
    """Sharding over one rank: an update equals that of the whole agent, and its checkpoint goes on without shards."""
    from digirl_dist.agent.sharding import Sharded, ShardedRows

    found = SUBJECTS["generic-vectors"](folder, _is_cuda(device))
    acted = episodes(found.made(), found, 8)
    with _group(device) as group:
        spread = Sharded(found.made, group, device, ("Linear",))
        sharded, seconds = _learned(spread, "filtered_bc", acted, folder / "a", ShardedRows(group))
    alone, _ = _learned(partial(found.made, device), "filtered_bc", acted, folder / "b", ALONE)
    apart = _weights_apart(sharded, alone)
    _require(apart < (_CLOSE if _is_cuda(device) else _SAME), f"weights differ by {apart:.2g} from those of one piece")
    return {"weights_vs_whole": apart, "update_s": seconds}


def host_inference(device: str, folder: Path) -> Figures:
    """``inference=host``: the policy's process on ``device`` decides full batches as the agent in this process does."""
    from digirl_dist.agent.placement import Placed
    from digirl_dist.inference.policy_server import PolicyProcess
    from digirl_dist.inference.requests import InferenceRequest, InferenceResult, RandomStream
    from digirl_dist.user_code.packing import pack

    found, count = SUBJECTS["device"](folder, _is_cuda(device)), 64
    seen, agent = found.observations(count), found.made(device)
    streams = [(11, index, 0) for index in range(count)]
    with torch.inference_mode():
        own = agent.act(seen, [RandomStream(*key).rng for key in streams])
    checkpoint = Checkpoints(folder / "checkpoints").save(0, agent.state_dict(), {}, {})
    process = PolicyProcess(pack(Placed(found.factory, device)), folder / "policy.log", 120.0)
    asked = [
        InferenceRequest(k, 0, RandomStream(*key), one) for k, (key, one) in enumerate(zip(streams, seen, strict=True))
    ]
    try:
        _require(not process.serve({0: checkpoint}), "the policy's process cannot load the policy")
        replies = {reply.number: reply for reply in process.decide(asked)}
        for number, decision in enumerate(own):
            reply = replies[number]
            same = isinstance(reply, InferenceResult) and reply.decision.action == decision.action
            _require(same, f"decision {number} differs: {reply} and {decision}")
        took = _seconds(lambda: process.decide(asked), "cpu")
    finally:
        process.close()
    return {"batch": float(count), "batch_ms": 1000 * took, "decisions_per_s": count / took}


def vlm_memory(device: str, folder: Path) -> Figures:
    """``agent.gradient_checkpointing``: the same gradients of the low-rank weights, and what it saves of the memory."""
    figures: Figures = {}
    gradients = []
    for name, build in (("plain", SUBJECTS["vlm"]), ("checkpointed", checkpointed_vlm)):
        found = build(folder, _is_cuda(device))
        agent = found.made(device)
        seen, actions, _ = actions_of(episodes(agent, found, 4, steps=2))
        agent.log_prob(seen, actions).sum().backward()
        gradients.append([parameter.grad.cpu() for parameter in agent.parameters() if parameter.grad is not None])
        figures[f"{name}_mib"] = _peak_mib(partial(_pass_back, agent, seen, actions), device)
        figures[f"{name}_s"] = _seconds(partial(_pass_back, agent, seen, actions), device)
    plain, again = gradients
    _require(len(plain) == len(again) > 0, "other weights have gradients when activations are recomputed")
    scale = max(float(each.abs().max()) for each in plain)
    apart = max(_apart(one, other) for one, other in zip(plain, again, strict=True)) / (scale or 1.0)
    _require(scale > 0 and apart < 1e-3, f"gradients differ by {apart:.2g} of the largest when recomputed")
    return {"gradients_apart": apart, **figures}


def vlm_large(device: str, folder: Path) -> Figures:
    """``agent=vlm`` with 2.8 billion parameters in bfloat16: decisions, an update by GRPO, and the memory it takes."""
    found = large_vlm(folder, device)
    agent = found.made(device)
    seen, rngs = found.observations(64), [np.random.default_rng(number) for number in range(64)]
    figures: Figures = {"billions": sum(each.numel() for each in torch.nn.Module.parameters(agent)) / 1e9}
    with torch.inference_mode():
        for rows in (8, 64):
            agent._rows_at_once = rows
            took = _seconds(partial(agent.act, seen, rngs), device, rounds=1)
            figures[f"decisions_per_s_by_{rows}"] = len(seen) / took
    agent._rows_at_once = 8
    acted = episodes(agent, found, 8)
    del agent
    if _is_cuda(device):
        torch.cuda.reset_peak_memory_stats()
    update_s = _learned(partial(found.made, device), "grpo", acted, folder / "grpo", ALONE)[1]
    peak = torch.cuda.max_memory_allocated() / 2**20 if _is_cuda(device) else NEEDS_GPU
    steps = float(sum(len(one.steps) for one in acted))
    return {**figures, "update_s": update_s, "steps": steps, "update_peak_mib": peak}


def vlm_learns(device: str, folder: Path) -> Figures:
    """``agent=vlm`` with random weights learns one task of the demo phone by GRPO, the host acting: how soon."""
    from digirl_dist.cli.main import main as run

    model, tasks, out = vlm_folder(folder, _is_cuda(device)), folder / "tasks.yaml", folder / "run"
    tasks.write_text("- open-clock-0\n")
    words = "dry_run=true dry_run_workers=1 inference=host train_iterations=8 rollout_size=64 bsize=16 max_steps=4"
    words += " agent=vlm agent.lora.r=8 agent.max_new_tokens=2 train_algorithm=grpo algorithm.grpo.group_size=8"
    words += f" algorithm.grpo.actor.learning_rate={1e-3 if _is_cuda(device) else 2e-2} trainer.device={device}"
    started = time.perf_counter()
    status = run([*words.split(), f"agent.model={model}", f"task_set={tasks}", f"save_path={out}"])
    _require(status == 0, f"run.py ended with status {status}")
    lines = Run(out).figures()
    first, last = lines[0]["success_rate"], lines[-1]["success_rate"]
    _require(last > first + 0.2, f"success went from {first:.2f} to {last:.2f}")
    shares = {name: sum(line[name] for line in lines) for name in ("collect_s", "update_s")}
    return {"first": first, "last": last, "run_s": time.perf_counter() - started, **shares}


def commands(device: str, folder: Path) -> Figures:
    """A run as users start it, on the device: ``run.py``, the host's update by ranks, and emulators on a rank."""
    from digirl_dist.cli.main import main as run
    from digirl_dist.parallel.launch import main as launch

    words = ["parallel=single", "emulator=gymnasium", "emulator.id=CartPole-v1", "bsize=2", "train_iterations=2"]
    words += [f"trainer.device={device}"]
    started = time.perf_counter()
    status = run([*words, "rollout_size=4", f"save_path={folder / 'run'}"])
    _require(status == 0, f"run.py ended with status {status}")
    ranks = [*words, "distributed.steps=16", f"save_path={folder / 'ranks'}"]
    status = launch(["--nproc_per_node=1", "-m", "digirl_dist.train", "--distributed", *ranks])
    _require(status == 0, f"digirl_dist.train ended with status {status}")
    return {"both_s": time.perf_counter() - started}


def _checks() -> Iterator[tuple[str, Check]]:
    for name in SUBJECTS:
        yield f"update {name}", Check(partial(updates, name))
    for name in SUBJECTS:
        yield f"bf16 {name}", Check(partial(bf16, name))
    for name in ("generic-images", "device", "autoui"):
        yield f"compile {name}", Check(partial(compiled, name), limit_s=600)
    yield "nccl", Check(one_rank)
    yield "fsdp2", Check(fsdp2)
    yield "host inference", Check(host_inference)
    yield "vlm memory", Check(vlm_memory, limit_s=600)
    yield "vlm large", Check(vlm_large, limit_s=600)
    yield "vlm learns", Check(vlm_learns, limit_s=600)
    yield "commands", Check(commands)


CHECKS = dict(_checks())


def _learned(
    make: Callable[[], Any], name: str, acted: Sequence[Trajectory], folder: Path, peers: Peers
) -> tuple[dict[str, torch.Tensor], float]:
    """Two updates with a resume between them, each by a trainer of its own; weights, and the second's seconds."""
    store, checkpoints = Store(folder / "trajectories"), Checkpoints(folder / "checkpoints")
    store.append(CollectionResult(0, list(acted)))
    first = InProcessTrainer(make, algorithm(name), checkpoints, 64, 0, peers)
    begin = first.resume()
    learned = first.update(begin, store).checkpoint
    before, after = begin.state(), learned.state()
    _require(_weights_apart(before, after) > 0, f"{name} moved no weight")
    store.append(CollectionResult(1, [_moved(one) for one in acted]))
    second = InProcessTrainer(make, algorithm(name), checkpoints, 64, 0, peers)
    started = time.perf_counter()
    update = second.update(second.resume(), store)
    return update.checkpoint.state(), time.perf_counter() - started


def _moved(one: Trajectory) -> Trajectory:
    """The same episode in the next iteration."""
    return replace(one, ticket=replace(one.ticket, iteration=1), episode_id=f"1-{one.ticket.index}")


def _group(device: str) -> AbstractContextManager[Group]:
    return joined(Rank(0, 1, 0, 1), device, GroupLimits(60.0, 60.0, 60.0))


def _pass_back(agent: Any, seen: Sequence[Any], actions: Sequence[Any]) -> None:
    agent.log_prob(seen, actions).sum().backward()


def _peak_mib(work: Callable[[], None], device: str) -> float | str:
    if not _is_cuda(device):
        return NEEDS_GPU
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def _seconds(work: Callable[[], Any], device: str, rounds: int = 5) -> float:
    """The shortest of some rounds, after one that warms up."""
    times = []
    for _ in range(1 + (rounds if _is_cuda(device) else 1)):
        started = time.perf_counter()
        work()
        if _is_cuda(device):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def _require_on(device: str, agent: torch.nn.Module) -> None:
    wanted = torch.device(device).type
    astray = [name for name, each in agent.state_dict().items() if each.device.type != wanted]
    _require(not astray, f"not on {device}: {', '.join(astray[:3])}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference, infinite where one of them is not finite."""
    apart = (one.detach().float().cpu() - other.detach().float().cpu()).abs().max()
    return float(apart) if bool(apart.isfinite()) else float("inf")


def _weights_apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(_apart(one[name], other[name]) for name in one)


def _is_cuda(device: str) -> bool:
    return device.startswith("cuda")
