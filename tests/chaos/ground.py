"""The environment of a chaos run: machines, a run folder on its own disk, and the host's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.machine import CLOCK, Disk, Machine
from chaos.processes import running
from digirl_dist.child_process import SOURCE
from digirl_dist.settings import Inference

SLOTS = 2
ROLLOUT = 24
LIMITS = {
    "ssh.connect_s": 5.0,
    "ssh.login_s": 10.0,
    "ssh.ping_s": 1.0,
    "ssh.silence_s": 5.0,
    "limits.silence_s": 7.0,
    "limits.start_s": 20.0,
    "limits.boot_s": 30.0,
    "limits.reset_s": 4.0,
    "limits.step_s": 4.0,
    "limits.slot_failures": 4,
    "limits.quarantine_s": 5.0,
    "limits.episode_attempts": 25,
    "limits.back_off_s": 0.2,
    "limits.back_off_max_s": 2.0,
    "limits.steady_s": 5.0,
    "limits.no_worker_s": 90.0,
    "limits.orphan_s": 20.0,
    "limits.stop_s": 8.0,
}
"""Limits short enough that a fault costs seconds, and long enough for two busy cores."""
POLICY_STUCK_S = 20.0
"""Limit of one batch of the host's policy."""


@dataclass(frozen=True)
class Program:
    """What the host runs: ``command``, and the settings that are its own."""

    command: Sequence[str]
    settings: Sequence[str]
    hydra: bool = False
    """Whether it takes overrides of the command line though it does not train."""

    @property
    def is_run(self) -> bool:
        """Whether it trains; else it is a fleet in somebody's own program."""
        return self.command == TRAINS


TESTS = str(Path(__file__).resolve().parents[1])
TRAINS = [f"{SOURCE}/run.py", "--config-path", "config/multimachine", "--config-name", "host"]
_RUN = Program(
    TRAINS,
    [
        *("emulator=rehearsal", "emulator.reset_s=0.2", "emulator.step_s=0.12", "emulator.steps=6"),
        *("agent=generic", "train_algorithm=filtered_bc", f"rollout_size={ROLLOUT}"),
    ],
)


class RunContext:
    """The machines and the host of one chaos run; ``run`` is its save_path, ``clock`` a file with the clocks' error."""

    def __init__(
        self,
        folder: Path,
        machines: int,
        inference: Inference,
        stack: ExitStack,
        limits: Mapping[str, float] = LIMITS,
        has_small_disks: bool = True,
    ) -> None:
        self.folder = folder
        self.inference = inference
        self.program = _RUN
        self._limits = limits
        self.clock = folder / "clock"
        self.clock.write_text("0")
        self.disk = _disk(folder / "host", "256m", stack) if has_small_disks else None
        self.run = folder / "host" / "run"
        self.machines = []
        for number in range(1, machines + 1):
            machine = Machine(f"w{number}", folder / f"w{number}", self.clock)
            stack.callback(machine.close)
            machine.disk = _disk(machine.jobs, "16m", stack) if has_small_disks else None
            self.machines.append(machine)
        self.ended_by_itself: list[str] = []
        """The host's last words each time it ended by itself."""
        self.given_up: set[str] = set()
        """Machines that the host gave up for good: only its restart brings them back."""
        self._host: subprocess.Popen[bytes] | None = None
        stack.callback(self.kill_host)
        self._trust()

    def policy(self) -> psutil.Process | None:
        """Returns the host's policy process."""
        children = psutil.Process(self.host.pid).children()
        return next(iter(running("digirl_dist.inference.policy_process", children)), None)

    @property
    def host(self) -> subprocess.Popen[bytes]:
        assert self._host is not None
        return self._host

    def start_host(self, iterations: int = 10**6) -> None:
        """Starts the host, always with the same command; it ends after ``iterations``."""
        workers = json.dumps([machine.entry(SLOTS) for machine in self.machines])
        words = [
            *self.program.settings,
            *("install.reuse_packages=true", f"inference={self.inference.value}"),
            *([f"limits.stuck_s={POLICY_STUCK_S}"] if self.inference is Inference.host else []),
            *(f"{name}={value}" for name, value in self._limits.items()),
            *(f"save_path={self.run}", f"worker_run_path={self.folder}/env", f"worker_python={sys.executable}"),
            *([f"train_iterations={iterations}"] if self.program.is_run else ()),
            f"worker_ips={_hydra(workers) if self.program.is_run or self.program.hydra else workers}",
        ]
        paths = os.pathsep.join([str(CLOCK), SOURCE, TESTS])
        ours = {"HOME": str(self.folder), "PYTHONPATH": paths, "CHAOS_CLOCK": str(self.clock), "OMP_NUM_THREADS": "1"}
        with (self.folder / "host.log").open("ab") as log:
            self._host = subprocess.Popen(
                [sys.executable, *self.program.command, *words],
                cwd=self.folder,
                env={**os.environ, **ours},
                stdout=log,
                stderr=log,
            )

    @property
    def is_down(self) -> bool:
        return self._host is None or self._host.poll() is not None

    def keep(self) -> None:
        """Keeps the files that explain a failure."""
        kept = f"{self.folder}.kept"
        os.makedirs(kept)
        os.system(f"cp -r {self.run} {self.folder}/*.log {self.folder}/notes {kept}/ 2>/dev/null")
        print(f"kept for a closer look: {kept}")

    def kill_host(self) -> None:
        if self._host is not None:
            self._host.kill()
            self._host.wait()

    def end_host(self, limit_s: float = 40.0, by: signal.Signals = signal.SIGTERM) -> int | None:
        """Ends the host by a signal; returns its exit status, None if it did not end."""
        self.host.send_signal(by)
        return self.await_host(limit_s)

    def await_host(self, limit_s: float) -> int | None:
        try:
            return self.host.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def keep_host(self) -> None:
        """Restarts the host if it has ended, and records its last words."""
        if self.host.poll() is not None:
            said = (self.folder / "host.log").read_text(errors="replace").splitlines()[-3:]
            self.ended_by_itself.append(f"status {self.host.returncode}: {' | '.join(said)}")
            time.sleep(1.0)
            self.start_host()

    def restart_host(self) -> None:
        """Brings back the machines that were given up."""
        self.end_host()
        self.start_host()
        self.given_up.clear()

    def why(self) -> str:
        """Returns the output of ``digirl-dist why``."""
        from digirl_dist.errors import RunFolderError, SettingsError
        from digirl_dist.report.why import explain

        try:
            return explain(self.run)
        except (RunFolderError, SettingsError) as error:
            return str(error)

    def _trust(self) -> None:
        (self.folder / ".ssh").mkdir()
        (self.folder / ".ssh" / "known_hosts").write_text("".join(machine.known_host for machine in self.machines))


def _disk(folder: Path, size: str, stack: ExitStack) -> Disk | None:
    """Makes a small disk; returns None without root, which it needs."""
    if os.geteuid() != 0:
        folder.mkdir(parents=True, exist_ok=True)
        return None
    disk = Disk(folder, size)
    stack.callback(disk.close)
    return disk


def _hydra(workers: str) -> str:
    """Returns JSON in Hydra's grammar of overrides: without quotes around the keys."""
    for key in ("host", "port", "username", "name", "key", "temp_path", "bsize"):
        workers = workers.replace(f'"{key}":', f"{key}:")
    return workers


@contextmanager
def ground(
    machines: int, inference: Inference, limits: Mapping[str, float] = LIMITS, has_small_disks: bool = True
) -> Iterator[RunContext]:
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="digirl-dist-chaos-", ignore_cleanup_errors=True))
        )
        yield RunContext(folder, machines, inference, stack, limits, has_small_disks)
