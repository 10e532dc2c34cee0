"""Curves of a run in TensorBoard and in Weights & Biases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from digirl_dist.child_process import environment
from digirl_dist.report.curves import TensorBoard

pytestmark = pytest.mark.component

FIGURES = {"iteration": 3, "time": 1.0, "success_rate": 0.5, "slot_seconds": {"reset": 1.0}, "reward_mean": None}


@pytest.mark.unit
def test_tensorboard_shows_the_figures_that_are_numbers(tmp_path: Path) -> None:
    curves = TensorBoard(tmp_path)
    curves.add(FIGURES, 3)
    curves.close()
    seen = EventAccumulator(str(tmp_path)).Reload()
    assert seen.Tags()["scalars"] == ["success_rate"]
    assert [(point.step, point.value) for point in seen.Scalars("success_rate")] == [(3, 0.5)]


def test_weights_and_biases_writes_below_the_run_folder_when_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    program = (
        "import sys, pathlib; from digirl_dist.report.curves import WeightsAndBiases\n"
        "curves = WeightsAndBiases('project', 'run1', pathlib.Path(sys.argv[1]))\n"
        f"curves.add({FIGURES!r}, 3); curves.close()"
    )
    offline = {**os.environ, **environment(), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=offline, check=True, timeout=120)
    (written,) = tmp_path.glob("wandb/offline-run-*-run1/run-run1.wandb")
    assert b"success_rate" in written.read_bytes()


def test_without_the_package_the_setting_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.modules['wandb'] = None; from digirl_dist.report.curves import WeightsAndBiases\n"
        "WeightsAndBiases('project', 'run1', pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert "digirl_dist[wandb]" in done.stderr
