"""One host process with 313 workers of 32 slots, 10,016 in all: what does it cost the host?

Host, SSH connections, relays, couriers and worker programs are real. To fit on one machine, 78 worker programs share a
process, and their emulators are on a clock instead of in processes of their own (``benchmarks/many_workers.py``).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import ROOT, Machine, show, stage
from digirl_dist.settings import LimitSettings, RehearsalSettings

WORKERS, SLOTS, PROCESSES, TICKETS_PER_SLOT = sized((313, 32, 4, 1), (3, 2, 2, 1))
DEVICE = sized(
    RehearsalSettings(reset_s=20, reset_sigma=0.4, step_s=10, step_sigma=0.5, steps=3, steps_sigma=0.3),
    RehearsalSettings(reset_s=0.02, step_s=0.01, steps=3),
)
LIMITS = LimitSettings(silence_s=120, start_s=300, no_worker_s=600)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with stage() as here:
        [address] = here.serve(1)
        names = [f"w{number:03d}" for number in range(WORKERS)]
        machines = [Machine(replace(address, name=name), SLOTS, DEVICE) for name in names]
        for part in range(PROCESSES):
            folders = [here.folder / "fleet" / "jobs" / name for name in names[part::PROCESSES]]
            here.stack.enter_context(_programs(folders))
        fleet = here.ours("fleet", machines, LIMITS)
        started = time.monotonic()
        while missing := sum(state.slots == 0 for state in fleet.collector.table.states.values()):
            with waiting_for(f"{missing} of {WORKERS} workers to join:"):
                fleet.iteration(1000 + len(fleet.fleet.manifests), 8)
        ready_s = time.monotonic() - started
        fleet.fleet.manifests.clear()
        host = psutil.Process()
        before, started = sum(host.cpu_times()[:2]), time.monotonic()
        result, seconds = fleet.iteration(1, WORKERS * SLOTS * TICKETS_PER_SLOT)
        cpu_s = sum(host.cpu_times()[:2]) - before
        cores = cpu_s / (time.monotonic() - started)
        threads = host.num_threads()
        acting = {manifest.episode_id.split("-", 2)[2] for _, manifest in fleet.fleet.manifests}
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    values = {"slots": (len(acting), ">=10000"), "host_cores": (cores, "<=1"), "host_rss_mb": (peak_mb, "<=1500")}
    detail = {
        "iteration_s": round(seconds, 1),
        "episodes": len(result.trajectories),
        "host_ms_per_episode": round(1000 * cpu_s / len(result.trajectories), 2),
        "host_threads": threads,
        "attached_after_s": round(ready_s, 1),
    }
    losses = sum(len(worker_result.losses) for worker_result in result.worker_results)
    show(
        "fleet",
        values,
        {**detail, "busy": result.busy, "workers_lost": losses, "programs_per_process": WORKERS // PROCESSES},
    )


@contextmanager
def _programs(folders: list[Path]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.many_workers", *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with waiting_for(f"a process with {len(folders)} worker programs"):
            assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        process.wait(20)


if __name__ == "__main__":
    measure(main, minutes=30)
