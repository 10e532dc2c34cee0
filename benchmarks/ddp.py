"""The host's update by two processes of one core each, against one process with one core, and with both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import ROOT, median, rounded, show
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

EPISODES, STEPS, UPDATES, ROUNDS = sized((64, 64, 3, 2), (4, 4, 1, 1))
WIDTH = sized(1024, 8)
WAYS = sized({"one": (1, 1), "two": (2, 1), "both_cores": (1, 2)}, {"one": (1, 1), "two": (2, 1)})
"""Name -> processes, and threads of each."""


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="digirl-dist-bench-") as folder:
        data = Path(folder) / "data.parquet"
        parquet.write(data, [_episode(number) for number in range(EPISODES)])
        for turn in range(ROUNDS):
            for name, (processes, threads) in WAYS.items():
                seconds[name].append(_update_s(Path(folder) / f"{name}-{turn}", data, processes, threads))
    speedups = [one / two for one, two in zip(seconds["one"], seconds["two"], strict=True)]
    beside = [both / two for both, two in zip(seconds.get("both_cores", []), seconds["two"], strict=False)]
    show(
        "ddp",
        {"speedup": (median(speedups), ">=1.0")},
        {
            "pairs": rounded(speedups),
            "vs_one_process_with_two_threads": rounded(beside),
            "update_s": {name: rounded(each) for name, each in seconds.items()},
            "policy": "an MLP of 1024 x 1024, minibatches of 1024 rows, 4096 rows an update",
            "note": "both ways are groups that the host starts; sums of gradients go over gloo",
        },
    )


def _update_s(folder: Path, data: Path, processes: int, threads: int) -> float:
    """Median seconds of the updates of one run, but for the first."""
    words = [
        *("parallel=single", "emulator=gymnasium", "emulator.id=CartPole-v1", "agent=generic", f"agent.width={WIDTH}"),
        *("train_mode=offline", f"offline.data=[{data}]", f"train_iterations={1 + UPDATES}", f"save_path={folder}"),
        *("algorithm.filtered_bc.top_share=1.0", "algorithm.filtered_bc.actor.batch_size=1024"),
        *("algorithm.filtered_bc.actor.epochs=1", "algorithm.filtered_bc.actor.accumulate=1"),
        *("trainer=torchrun", f"trainer.nproc_per_node={processes}", "trainer.device=cpu"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with waiting_for(f"{1 + UPDATES} updates by {processes} process(es) of {threads} thread(s)"):
        done = subprocess.run([sys.executable, ROOT / "run.py", *words], cwd=ROOT, env=environment, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return median([json.loads(line)["update_s"] for line in lines[1:]])


def _episode(number: int) -> Trajectory:
    rng = np.random.default_rng(number)
    seen = [Observation(vector=rng.standard_normal(4).astype(np.float32)) for _ in range(STEPS + 1)]
    steps = [Step(one, int(rng.integers(2)), -0.7, 0.0, False, False) for one in seen[:-1]]
    steps[-1] = Step(seen[-2], 1, -0.7, 1.0, True, False)
    ticket = Ticket(0, number, Task("balance"), number, 0)
    return Trajectory(ticket, f"e{number}", "w", 0, steps, seen[-1], success=True)


if __name__ == "__main__":
    measure(main, minutes=20)
