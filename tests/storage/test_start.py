"""Where a run starts that is told to begin with the policy of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from user_classes import Coin, Counter, HeavyCoin

from digirl_dist.agent.placement import StartedFrom
from digirl_dist.errors import CheckpointError, SettingsError
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.start import start_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A run with the checkpoints 3 and 4, of which 3 is the best."""
    run = tmp_path / "source"
    for iteration in (3, 4):
        coin = Coin(Counter.spec)
        coin.logits.data += torch.tensor([0.0, float(iteration)])
        Checkpoints(run / "checkpoints").save(iteration, coin.state_dict(), {"optimizer": 1}, {})
    Checkpoints(run / "checkpoints").rate(Checkpoints(run / "checkpoints").open(3), 0.5)
    (run / "run.json").write_text(json.dumps({"run_id": "abc"}))
    (run / "config.yaml").write_text("agent: {name: device}\n")
    return run


def found(start_from: Path | str, run: Path) -> Checkpoint:
    start = start_of(str(start_from), run)
    assert start is not None and isinstance(start.checkpoint, Checkpoint)
    return start.checkpoint


def test_a_run_folder_means_its_newest_checkpoint_and_a_checkpoint_itself(source: Path, tmp_path: Path) -> None:
    assert found(source, tmp_path / "new").iteration == 4
    assert found(source / "checkpoints" / "best", tmp_path / "new").iteration == 3
    kept = shutil.copytree(source / "checkpoints" / "000003", tmp_path / "my policy")
    assert found(kept, tmp_path / "new").iteration == 3


def test_the_newest_checkpoint_counts_also_where_the_link_to_it_is_missing_or_behind(
    source: Path, tmp_path: Path
) -> None:
    """A run that was killed between the two, or a folder that was copied to where there are no links."""
    latest = source / "checkpoints" / "latest"
    latest.unlink()
    assert found(source, tmp_path / "new").iteration == 4
    latest.symlink_to("000003")
    assert found(source, tmp_path / "new").iteration == 4


def test_what_is_no_checkpoint_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere is no checkpoint"):
        start_of(str(tmp_path / "nowhere"), tmp_path / "new")
    (source / "checkpoints" / "000004" / "manifest.json").write_text("[]")
    with pytest.raises(SettingsError, match="manifest.json cannot be read"):
        start_of(str(source), tmp_path / "new")


def test_a_run_that_goes_on_does_not_start_again_even_if_its_source_is_gone(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "new"
    start = start_of(str(source), run)
    assert start is not None and start.agent == "device"
    run.mkdir()
    record = start.record(run)
    assert record["iteration"] == 4 and record["run_id"] == "abc" and json.loads((run / "start.json").read_text())
    Checkpoints(run / "checkpoints").save(0, Coin(Counter.spec).state_dict(), {}, {})
    shutil.rmtree(source)
    assert start_of(str(source), run) is None and start_of(None, run) is None


def test_a_run_that_started_otherwise_is_not_taken_for_it(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "new"
    Checkpoints(run / "checkpoints").save(0, Coin(Counter.spec).state_dict(), {}, {})
    with pytest.raises(SettingsError, match="holds a run that started with fresh weights.*another save_path"):
        start_of(str(source), run)


def test_the_agent_begins_with_the_policy_and_another_agent_is_refused(source: Path) -> None:
    checkpoint = Checkpoints(source / "checkpoints").open(4)
    agent = StartedFrom(lambda: Coin(Counter.spec), checkpoint)()
    assert agent.state_dict()["logits"].tolist() == [0.0, 4.0]
    with pytest.raises(CheckpointError, match=r"000004 does not fit the configured agent.*ballast"):
        StartedFrom(lambda: HeavyCoin(Counter.spec, 1), checkpoint)()
