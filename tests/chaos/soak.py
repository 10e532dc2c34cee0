"""``script/soak --mode run``: does anything of a long run grow once it is warm?

Memory, descriptors and threads of the host, its ranks, a viewer, the worker programs and their servers, in two windows
after a warm-up: the first and the last third of the rounds that remain. What grows by more than 3 % fails.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.ground import TESTS, TRAINS
from chaos.page import watch_page
from chaos.processes import eventually, processes_with
from digirl_dist.child_process import SOURCE
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c

_MOST = 1.03
_SLACK = {"mb": 1.0, "descriptors": 1.0, "threads": 1.0}
"""What may come beside the 3 %: a descriptor more is one of thirty."""
_WARM = 0.6
"""Share of the rounds in which allocators and caches reach their size: 600 of 1,000, as was measured."""
_EVERY_S = 2.0
_START_S = 120.0
_ROLES = {
    "worker_program.program": "program",
    "worker_program.courier": "courier",
    "worker_program.attach": "attach",
    "emulator_process": "emulator",
    "localhost_server": "server",
    "parallel.launch": "launcher",
    "digirl_dist run": "rank",
    "digirl_dist view": "viewer",
    "chaos.notebook": "host",
    "run.py": "host",
}
_FLEET = [
    *("dry_run=true", "dry_run_workers=2", "bsize=2"),
    *(
        "emulator=rehearsal",
        "emulator.reset_s=0",
        "emulator.step_s=0",
        "emulator.steps=2",
        "emulator.image_size=[32,32]",
    ),
]
_EPISODES = 8
_SHORT_SIDE = 144
"""Of the pictures that an agent keeps: so large that its 256 MB are full before the warm-up ends."""
_RUN = [*_FLEET, "agent=generic", f"agent.short_side={_SHORT_SIDE}", f"rollout_size={_EPISODES}", "save_freq=1000000"]
_LEARNS = [
    *(*_RUN, "train_algorithm=filtered_bc", "trainer.replay_size=64"),
    "algorithm.filtered_bc.actor.max_examples=128",  # it is the rounds that count
]


@dataclass(frozen=True)
class Mode:
    """One way to run for long: its settings, of which one is the number of ``rounds``."""

    settings: Sequence[str]
    rounds: int
    """So many that caches are full before the last third of them."""
    counts: str = "train_iterations"
    is_viewed: bool = False
    """Whether a page of the viewer watches it."""

    def command(self, rounds: int) -> list[str]:
        if not self.counts:
            return ["-m", "chaos.notebook", "0", str(_EPISODES), str(rounds), *self.settings]
        return [*TRAINS, *self.settings, f"{self.counts}={rounds}"]


MODES = {
    "run": Mode(_LEARNS, 1000),
    "torchrun": Mode([*_LEARNS, "trainer=torchrun", "trainer.nproc_per_node=2"], 800),
    "collect": Mode([*_RUN, "task_mode=collect"], 1000, "eval_iterations"),
    "fleet": Mode(_FLEET, 1000, ""),
    "viewer": Mode(_LEARNS, 800, is_viewed=True),
}


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
    """Returns, by role and kind, the medians in the first and in the last third of the iterations after the warm-up."""
    found = {}
    third = (1 - _WARM) * iterations / 3
    for role in sorted({sample.role for sample in samples}):
        mine = [sample for sample in samples if sample.role == role]
        early = [sample for sample in mine if 0 <= sample.iteration - _WARM * iterations < third]
        late = [sample for sample in mine if iterations - third <= sample.iteration < iterations]
        for kind in _SLACK if early and late else ():
            before, after = (statistics.median(getattr(each, kind) for each in some) for some in (early, late))
            found[role, kind] = before, after
    return found


def grows(kind: str, before: float, after: float) -> bool:
    """Returns whether that is more than noise."""
    return after > _MOST * before and after > before + _SLACK[kind]


def soak(mode: Mode, rounds: int, more: Sequence[str]) -> list[Sample]:
    """Runs so many rounds and looks at the run's processes now and then. Raises RuntimeError if the run fails."""
    with tempfile.TemporaryDirectory(prefix="digirl-dist-soak-") as folder, ExitStack() as stack:
        run, log = Path(folder, "run"), Path(folder, "log")
        command = [sys.executable, *mode.command(rounds), f"save_path={run}", *more]
        with log.open("wb") as output:
            host = subprocess.Popen(
                command,
                cwd=SOURCE,
                stdout=output,
                stderr=output,
                env={**os.environ, "TMPDIR": folder, "PYTHONPATH": TESTS},
            )
        stack.callback(host.wait)
        stack.callback(host.terminate)
        if mode.is_viewed:
            stack.enter_context(watch_page(_viewed(run, Path(folder), stack)))
        samples: list[Sample] = []
        while host.poll() is None:
            time.sleep(_EVERY_S)
            samples += _look(_rounds(run), processes_with(folder, environment=True))
        if host.returncode != 0:
            raise RuntimeError(f"the run ended with status {host.returncode}: {log.read_text()[-2000:]}")
    return samples


def _viewed(run: Path, folder: Path, stack: ExitStack) -> str:
    """Starts a viewer of the run; returns its address."""
    eventually(lambda: _rounds(run) > 0, _START_S)
    said = folder / "viewer.log"
    with said.open("wb") as output:
        viewer = subprocess.Popen(
            [sys.executable, "-m", "digirl_dist", "view", str(run)], cwd=SOURCE, stdout=output, stderr=output
        )
    stack.callback(viewer.wait)
    stack.callback(viewer.terminate)
    eventually(lambda: "open http" in said.read_text(), _START_S)
    address = re.search(r"open (http\S+)", said.read_text())
    if address is None:
        raise RuntimeError(f"the viewer did not start: {said.read_text()[-2000:]}")
    return address[1]


def _rounds(run: Path) -> int:
    """Returns how many rounds are stored: of training, or of a policy that is only measured."""
    stored = [*run.glob("trajectories/[0-9]*.parquet"), *run.glob("evaluation/000000/[0-9]*.parquet")]
    return 1 + max((int(path.stem) for path in stored), default=-1)


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
    if not found:
        raise RuntimeError("nothing was looked at after the warm-up: no round was stored, or there were too few")
    print(f"{'':24}{'first third':>12}{'last third':>12}{'':>4}(after the warm-up)")
    grown = False
    for (role, kind), (before, after) in found.items():
        too_much = grows(kind, before, after)
        grown = grown or too_much
        print(f"{f'{role}: {kind}':24}{before:12.1f}{after:12.1f}{'  GROWS' if too_much else ''}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/soak", description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append", help="what runs; may be repeated (default: run)")
    parser.add_argument("--iterations", type=int, help="rounds; of these, the first 60 %% warm up (default: by mode)")
    parser.add_argument("settings", nargs="*", help="further settings of the run, as key=value")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    end_by_signals_as_by_ctrl_c()  # or what it started goes on
    grown = False
    for name in options.mode or ["run"]:
        mode, began = MODES[name], time.monotonic()
        rounds = options.iterations or mode.rounds
        samples = soak(mode, rounds, options.settings)
        print(f"{name}: {rounds} rounds in {time.monotonic() - began:.0f} s")
        grown = _show(growth(samples, rounds)) or grown
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
