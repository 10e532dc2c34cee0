"""``script/soak --iterations 1000``: does anything of a long dry run grow once its replay is full?

Memory, descriptors and threads of the host, the worker programs and their servers, over the second and over the last
fifth of the iterations. What grows by more than 3 % fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.processes import processes_with
from digirl_dist.child_process import SOURCE

_MOST = 1.03
_EVERY_S = 1.0
_ROLES = {
    "worker_program.program": "program",
    "worker_program.courier": "courier",
    "worker_program.attach": "attach",
    "emulator_process": "emulator",
    "localhost_server": "server",
    "run.py": "host",
}
_RUN = [
    *("dry_run=true", "dry_run_workers=2", "bsize=2", "rollout_size=8", "trainer.replay_size=64", "save_freq=1000000"),
    *("emulator=rehearsal", "emulator.reset_s=0", "emulator.step_s=0", "emulator.steps=2"),
    *("agent=generic", "train_algorithm=filtered_bc"),
]


@dataclass(frozen=True)
class Sample:
    """What the processes of a role have at one moment, together."""

    iteration: int
    role: str
    mb: float
    """Memory that is theirs alone."""
    descriptors: int
    threads: int


def growth(samples: Sequence[Sample], iterations: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns, by role and kind, the median in the second and in the last fifth of the iterations."""
    found = {}
    for role in sorted({sample.role for sample in samples}):
        mine = [sample for sample in samples if sample.role == role]
        early = [sample for sample in mine if 0.2 * iterations <= sample.iteration < 0.4 * iterations]
        late = [sample for sample in mine if sample.iteration >= 0.8 * iterations]
        for kind in ("mb", "descriptors", "threads") if early and late else ():
            before, after = (statistics.median(getattr(each, kind) for each in some) for some in (early, late))
            found[role, kind] = before, after
    return found


def soak(iterations: int, more: Sequence[str]) -> list[Sample]:
    """Runs so many iterations and looks at the run's processes every second."""
    with tempfile.TemporaryDirectory(prefix="digirl-dist-soak-") as folder:
        words = [*_RUN, f"save_path={folder}/run", f"train_iterations={iterations}", *more]
        where = ["--config-path", "config/multimachine", "--config-name", "host"]
        log = Path(folder, "log")
        with log.open("wb") as output:
            host = subprocess.Popen(
                [sys.executable, f"{SOURCE}/run.py", *where, *words], cwd=SOURCE, stdout=output, stderr=output
            )
        samples: list[Sample] = []
        try:
            while host.poll() is None:
                time.sleep(_EVERY_S)
                samples += _look(_iteration(Path(folder, "run")), processes_with(folder))
        finally:
            host.terminate()
            host.wait()
        if host.returncode != 0:
            raise RuntimeError(f"the run ended with status {host.returncode}: {log.read_text()[-2000:]}")
    return samples


def _iteration(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def _look(iteration: int, processes: Sequence[psutil.Process]) -> list[Sample]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    for process in processes:
        try:
            line = " ".join(process.cmdline())
            role = next((role for word, role in _ROLES.items() if word in line), "other")
            has = process.memory_full_info().uss / (1 << 20), process.num_fds(), process.num_threads()
        except psutil.Error:
            continue
        totals[role] = [total + each for total, each in zip(totals[role], has, strict=True)]
    return [Sample(iteration, role, mb, int(fds), int(threads)) for role, (mb, fds, threads) in totals.items()]


def _show(found: Mapping[tuple[str, str], tuple[float, float]]) -> bool:
    print(f"{'':24}{'2nd fifth':>12}{'last fifth':>12}")
    grown = False
    for (role, kind), (before, after) in found.items():
        too_much = after > _MOST * before
        grown = grown or too_much
        print(f"{f'{role}: {kind}':24}{before:12.1f}{after:12.1f}{'  GROWS' if too_much else ''}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/soak", description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("settings", nargs="*", help="further settings of the run, as key=value")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    samples = soak(options.iterations, options.settings)
    return int(_show(growth(samples, options.iterations)))


if __name__ == "__main__":
    sys.exit(main())
