"""The shape of the package: imports point one way, and the command line is quick because it imports little."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import digirl_dist
from digirl_dist.same_python import environment

PACKAGE = Path(digirl_dist.__file__).parent

LAYERS = [
    ["__init__", "errors", "exit_status", "digest", "tasks", "same_python", "capacity", "free_port"],
    ["parallel", "settings", "durable", "trajectory", "question", "entry_point", "travel", "job", "task_set"],
    [
        "events",
        "slot_time",
        "status",
        "table",
        "harvest",
        "dataset",
        "import_digirl",
        "plain_pickle",
        "interval",
        "checkpoint",
        "room",
        "delta",
        "run_folder",
        "ssh",
        "emulator",
        "agent",
        "chat",
        "judge",
        "algorithm",
    ],
    ["rollout", "store"],
    ["worker", "inference"],
    ["fleet"],
    ["cluster", "vec_env"],
    ["collect", "train", "provision", "doctor"],
    ["report"],
    ["evaluator"],
    ["host"],
    ["configuration", "choices", "modes", "build_collector", "build", "upkeep"],
    ["distributed", "evaluate", "bridges"],
    ["cli", "cli_workers", "__main__"],
]
"""A part may import parts of its own layer and of those above it in this list."""

IMPLEMENTATIONS = {
    "agent.autoui",
    "agent.device",
    "agent.endpoint",
    "agent.generic",
    "agent.vlm",
    "algorithm.digirl",
    "algorithm.filtered_bc",
    "cluster.line",
    "collect.ahead",
    "algorithm.grpo",
    "algorithm.ppo",
    "algorithm.ppo_jax",
    "algorithm.untrained",
    "collect.fleet",
    "collect.inline",
    "emulator.android",
    "emulator.gymnasium",
    "emulator.miniwob",
    "emulator.phone",
    "emulator.prompted",
    "emulator.rehearsal",
    "judge.model",
    "judge.predicate",
    "train.inprocess",
    "train.joint",
    "train.torchrun",
}
"""Only the composition root (build, build_collector and choices) chooses among these."""


def layer(part: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part in parts)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts), path


def imports(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports, as ``fleet.worker``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "digirl_dist":
            base = (node.module or "").removeprefix("digirl_dist").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                is_module = (PACKAGE / f"{inner.replace('.', '/')}.py").exists()
                yield inner if is_module else base or "__init__"
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("digirl_dist").removeprefix(".") or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "digirl_dist"
            )


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_imports_point_one_way(name: str, path: Path) -> None:
    own = layer(name.split(".")[-1] if name.endswith("__main__") else name.split(".")[0])
    upward = [target for target in imports(path) if layer(target.split(".")[0]) > own]
    assert not upward, f"{name} imports {upward} from a layer above"


def test_only_the_composition_root_imports_implementations() -> None:
    for name, path in modules():
        if name in ("build", "build_collector", "choices"):
            continue
        for target in imports(path):
            for implementation in IMPLEMENTATIONS:
                is_it = target == implementation or target.startswith(implementation + ".")
                inside = name.split(".")[0] == implementation.split(".")[0]  # one may build on another of its seam
                assert not is_it or inside, f"{name} imports {target}"


def test_help_answers_within_a_second_and_without_heavy_imports() -> None:
    program = (
        "import sys; from digirl_dist.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'hydra', 'paramiko', 'pyarrow') if name in sys.modules])"
    )
    times = []
    for _ in range(3):
        started = time.monotonic()
        shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
        times.append(time.monotonic() - started)
        assert "worker_ips" in shown.stdout and shown.stdout.strip().endswith("[]")
    assert min(times) < 1.0


def test_the_way_to_a_worker_program_imports_nothing_heavy() -> None:
    program = (
        "import sys, digirl_dist.worker.attach, digirl_dist.worker.courier\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'omegaconf', 'paramiko') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
