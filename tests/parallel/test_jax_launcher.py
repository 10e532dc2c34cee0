"""The launcher of JAX ranks: acceptance rows C1, C3, C4, C5 and the launcher's side of C7, with real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_launch import launch, started

from digirl_dist.parallel.jax import main

pytestmark = pytest.mark.component

PROGRAM = str(Path(__file__).parent / "jax_rank_program.py")
LAUNCHER = [sys.executable, "-m", "digirl_dist.parallel.jax"]


def told(out: str) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["RANK"]))


def told_by(process: subprocess.Popen[str], ranks: int) -> list[dict[str, Any]]:
    """The same, of a launch under way."""
    assert process.stdout is not None
    return told("".join(process.stdout.readline() for _ in range(ranks)))


def test_c1_the_second_of_two_nodes_starts_ranks_2_and_3_of_4() -> None:
    nodes = ["--nnodes", "2", "--nproc_per_node", "2", "--node_rank", "1", "--coordinator_address", "[::1]:5000"]
    ended = launch([*LAUNCHER, *nodes, PROGRAM, "tell", "-m", "--seed=1"])
    assert ended.status == 0, ended.out
    ranks = told(ended.out)
    assert [(rank["LOCAL_RANK"], rank["RANK"], rank["WORLD_SIZE"]) for rank in ranks] == [
        ("0", "2", "4"),
        ("1", "3", "4"),
    ]
    assert {(rank["COORDINATOR_ADDR"], rank["COORDINATOR_PORT"]) for rank in ranks} == {("::1", "5000")}
    assert all(rank["arguments"] == ["tell", "-m", "--seed=1"] for rank in ranks)


def test_c3_a_rank_that_exits_with_3_ends_a_deaf_peer_and_the_launch_with_3() -> None:
    began = time.monotonic()
    with started([*LAUNCHER, "--nproc_per_node=2", PROGRAM, "--exit=1:3", "--deaf"]) as process:
        ranks = told_by(process, 2)
        assert process.wait(timeout=120) == 3
    assert time.monotonic() - began < 15 + 30  # what it takes to start them
    assert not any(psutil.pid_exists(rank["pid"]) for rank in ranks)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--nnodes=0", "x.py"], "--nnodes=0"),
        (["--nproc_per_node=0", "x.py"], "--nproc_per_node=0"),
        (["--nnodes=2", "--node_rank=2", "x.py"], "--node_rank=2 is out of range: with --nnodes=2 it is 0 to 1"),
        (["--node_rank=-1", "x.py"], "--node_rank=-1"),
        (["--coordinator_address=host", "x.py"], "'host' is not HOST:PORT"),
        (["--coordinator_address=::1:5000", "x.py"], "as in 10.0.0.1:5000 or [::1]:5000"),
        (["--nnodes=2", "x.py"], "need --coordinator_address"),
        ([], "nothing to run"),
        (["-m"], "nothing to run"),
    ],
)
def test_c4_launches_that_cannot_be_are_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert said in capsys.readouterr().err


def test_c5_sigterm_to_the_launcher_ends_the_ranks() -> None:
    with started([*LAUNCHER, "--nproc_per_node=2", PROGRAM]) as process:
        ranks = told_by(process, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        assert not any(psutil.pid_exists(rank["pid"]) for rank in ranks)


def test_c7_the_launchers_need_neither_jax_nor_torch() -> None:
    imports = "import sys, digirl_dist.parallel.jax, digirl_dist.parallel.launch"
    program = f"{imports}; print([n for n in ('jax', 'torch') if n in sys.modules])"
    assert launch([sys.executable, "-c", program]).out.strip() == "[]"
