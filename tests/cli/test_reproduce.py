"""``digirl-dist reproduce``: a run is made again from its folder alone, and what differs is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_run import make_run

from digirl_dist.cli.main import main
from digirl_dist.report.reproduction import tickets_of

pytestmark = pytest.mark.component

INLINE = ["parallel=single", "trainer.device=cpu", "bsize=1", "rollout_size=4", "train_iterations=2", "max_steps=3"]
PPO = ["emulator=gymnasium", "emulator.id=CartPole-v1", "agent=generic", "train_algorithm=ppo"]
"""Its learning rate follows from ``train_iterations``."""


def digirl_dist(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "digirl_dist", *words], cwd=folder, capture_output=True, text=True)


@pytest.mark.long(30)
def test_the_beginning_of_an_inline_run_is_equal_when_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = digirl_dist(tmp_path, "run", *INLINE, *PPO, "save_path=first")
    assert made.returncode == 0, made.stderr
    record = tmp_path / "first" / "provenance.jsonl"
    record.write_text(record.read_text().replace('"torch": "', '"torch": "0.1 \\u001b[2J', 1))
    again = digirl_dist(tmp_path, "reproduce", "first", "--iterations", "1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "tickets equal; figures equal" in again.stdout
    assert r"the first run had another environment: packages.torch 0.1 \x1b[2J" in again.stdout
    for iterations in ("0", "3"):
        assert main(["reproduce", str(tmp_path / "first"), "--into", "new", "--iterations", iterations]) == 2
        assert "has 2 finished iterations" in capsys.readouterr().err


def test_a_damaged_file_and_a_folder_that_is_no_utf8_are_named_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tickets_of(make_run(tmp_path / "run", iterations=1).rename(tmp_path / "run\udcff"), 1)
    broken = make_run(tmp_path / "broken", iterations=1)
    next((broken / "trajectories").glob("*.parquet")).write_bytes(b"PAR1")
    assert main(["reproduce", str(broken)]) == 1
    assert "000000.parquet is not a trajectory file" in capsys.readouterr().err
    assert not (tmp_path / "broken-again").exists()


def test_what_is_no_run_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no run folder" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["reproduce", str(tmp_path), "--into", str(tmp_path / "file")]) == 2
    assert "file is there already: name another folder with --into" in capsys.readouterr().err
    assert main(["reproduce", str(tmp_path), f"save_path={tmp_path}/new"]) == 2
    assert "name the new folder with --into" in capsys.readouterr().err
