"""Checks everything that computes on a GPU, and prints one table of figures and failures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.gpu.checks import CHECKS, NEEDS_GPU, CheckFailed, Figures
from digirl_dist.child_process import environment
from digirl_dist.errors import DeviceError
from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices
from digirl_dist.storage.atomic_files import write_json

_LINES = 12


@dataclass(frozen=True)
class Outcome:
    """What came of one check; ``failure`` is empty if nothing was wrong."""

    name: str
    seconds: float
    figures: Figures
    failure: str = ""

    def line(self) -> str:
        told = "  ".join(f"{name}={_short(value)}" for name, value in self.figures.items())
        mark = "FAIL" if self.failure else NEEDS_GPU if set(self.figures.values()) == {NEEDS_GPU} else "ok"
        reason = "".join(f"\n      {line}" for line in self.failure.splitlines()[-_LINES:])
        return f"{mark:<12} {self.name:<24} {self.seconds:6.1f} s  {told}{reason}"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 with failures, 2 for a device that is not there."""
    options = _options(argv)
    if options.list:
        print(*CHECKS, sep="\n")
        return 0
    try:
        device = resolve_device(DeviceRequest(options.device), None, visible_devices(None))
    except DeviceError as error:
        print(f"error: {error}; --device cpu tries the checks without one", file=sys.stderr)
        return 2
    if options.child:
        return _child(options.child, device, Path(options.folder))
    machine = _machine(device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    outcomes = []
    for name in options.only or CHECKS:
        outcomes.append(_outcome(name, device, options.limit_s or CHECKS[name].limit_s))
        print(outcomes[-1].line(), flush=True)
    found = {"machine": machine, "checks": [asdict(outcome) for outcome in outcomes]}
    write_json(Path(options.json), found)
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    print(f"{len(outcomes)} checks, {failed} failed; figures in {options.json}")
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the checks without a GPU")
    parser.add_argument("--only", action="append", choices=list(CHECKS), help="make this check; may be repeated")
    parser.add_argument("--limit-s", type=float, help="seconds for each check, in place of its own deadline")
    parser.add_argument("--json", default="gpu.json", help="file of the figures (gpu.json)")
    parser.add_argument("--list", action="store_true", help="print the checks")
    parser.add_argument("--child", choices=list(CHECKS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _outcome(name: str, device: str, limit_s: float) -> Outcome:
    """Runs a check in a process of its own, which is killed with all its children at the deadline."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="digirl-dist-gpu-") as folder:
        command = [sys.executable, "-m", "benchmarks.gpu", "--child", name, "--device", device, "--folder", folder]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, env=environment()
        )
        try:
            output, _ = child.communicate(timeout=limit_s)
            late = ""
        except subprocess.TimeoutExpired:
            _kill_group(child.pid)
            output, _ = child.communicate()
            late = f"it took longer than its {limit_s:g} s"
        result = Path(folder) / "result.json"
        told = json.loads(result.read_text()) if result.exists() else {}
    failure = late or told.get("failure", f"its process ended with status {child.returncode}")
    if failure:
        failure = f"{output.decode(errors='replace')}\n{failure}".strip()
    return Outcome(name, round(time.monotonic() - started, 1), told.get("figures", {}), failure)


def _child(name: str, device: str, folder: Path) -> int:
    """Makes a check here and leaves its result in the folder."""
    figures: Figures = {}
    failure = ""
    try:
        figures = CHECKS[name].run(device, folder)
    except CheckFailed as error:
        failure = str(error)
    except Exception:
        failure = traceback.format_exc()
    write_json(folder / "result.json", {"figures": figures, "failure": failure})
    return 0


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _machine(device: str) -> dict[str, str]:
    about = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    if device.startswith("cuda"):
        memory = torch.cuda.get_device_properties(device).total_memory / 2**30
        about |= {"gpu": torch.cuda.get_device_name(device), "gpu_gib": f"{memory:.0f}"}
    return about


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
