"""script/gpu on the CPU: every check runs, and what fails or hangs is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import checks
from benchmarks.gpu.__main__ import Outcome, main

pytestmark = pytest.mark.component

SLOW = {
    "update autoui",
    "update vlm",
    "compile device",
    "compile generic-images",
    "compile autoui",
    "vlm large",
    "commands",
}
"""As the other checks and tests, but longer."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(checks.CHECKS) - SLOW))
def test_a_check_runs_on_the_cpu_too(name: str, tmp_path: Path) -> None:
    figures = checks.CHECKS[name].run("cpu", tmp_path)
    assert figures and (name == "nccl") == (set(figures.values()) == {checks.NEEDS_GPU})


@pytest.mark.unit
def test_an_agent_that_stays_behind_is_found() -> None:
    with pytest.raises(checks.CheckFailed, match=r"not on cuda: weight, bias"):
        checks._require_on("cuda", torch.nn.Linear(2, 2))


def test_the_command_tells_figures_and_failures_and_ends_what_takes_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "cpu", "--only", "nccl", "--json", str(tmp_path / "gpu.json")]
    assert main(words) == 0
    assert "needs a GPU  nccl" in capsys.readouterr().out
    assert main([*words, "--limit-s", "0.2"]) == 1
    assert "it took longer than its 0.2 s" in capsys.readouterr().out
    (told,) = json.loads((tmp_path / "gpu.json").read_text())["checks"]
    assert told["name"] == "nccl" and told["failure"]


@pytest.mark.unit
def test_a_failure_is_told_below_its_line() -> None:
    line = Outcome("vlm", 1.0, {"error": 0.5, "mib": checks.NEEDS_GPU}, "it differs").line()
    assert line.split() == ["FAIL", "vlm", "1.0", "s", "error=0.5", "mib=needs", "a", "GPU", "it", "differs"]


@pytest.mark.unit
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_told_how_to_try_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no CUDA device is visible" in capsys.readouterr().err
