"""Checkpoints are whole or absent, and altered ones are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from digirl_dist.errors import CheckpointError
from digirl_dist.storage.checkpoint import Checkpoints, TensorInfo, describe, raw_bytes, tensor_from
from digirl_dist.storage.digest import file_digest


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weight": torch.randn(3, 4),
        "half": torch.randn(5).to(torch.bfloat16),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 2),
        "frozen": torch.zeros(8, 8)[:, ::2],
    }


def test_weights_and_trainer_state_read_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, state(), {"updates": 3, "moments": [torch.ones(2)]}, {"loss": 0.5})
    newest = checkpoints.newest()
    assert newest is not None and newest.iteration == 0
    assert all(torch.equal(tensor, newest.state()[name]) for name, tensor in state().items())
    assert newest.trainer_state()["updates"] == 3
    assert newest.metrics() == {"loss": 0.5}


@pytest.mark.parametrize("name", sorted(state()))
def test_a_tensor_goes_through_its_raw_bytes(name: str) -> None:
    tensor = state()[name]
    restored = tensor_from(bytearray(raw_bytes(tensor)), describe({name: tensor})[name])
    assert restored.dtype == tensor.dtype and torch.equal(restored, tensor)


def test_a_tensor_with_other_bytes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="digest"):
        tensor_from(bytearray(8), TensorInfo("0" * 32, "float32", (2,)))


def test_a_checkpoint_that_was_not_finished_does_not_exist(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, state(), {}, {})
    for left in ("000001.part", "000017.part"):
        (tmp_path / left).mkdir()
    newest = checkpoints.newest()
    assert newest is not None and newest.iteration == 0
    checkpoints.save(1, state(), {}, {})
    assert (tmp_path / "latest").resolve().name == "000001" and not [*tmp_path.glob("*.part")]


@pytest.mark.parametrize("name", ["policy.safetensors", "trainer.pt", "metrics.json", "manifest.json"])
def test_a_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    Checkpoints(tmp_path).save(0, state(), {}, {})
    path = tmp_path / "000000" / name
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: .*; remove its folder to resume from the one"):
        found = Checkpoints(tmp_path).open(0)
        found.state(), found.trainer_state(), found.metrics()


@pytest.mark.component
def test_a_file_system_that_stores_later_compresses_or_keeps_zeros_as_holes_refuses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = os.fstat

    def fstat(file: int) -> os.stat_result:
        """What OpenZFS tells of a file until its transaction group is committed, whatever was flushed."""
        found = told(file)
        rest = {name: getattr(found, name) for name in ("st_atime", "st_mtime", "st_ctime", "st_blksize", "st_rdev")}
        return os.stat_result([*found], {**rest, "st_blocks": 1})

    monkeypatch.setattr(os, "fstat", fstat)
    moments, weights = torch.zeros(20_000_000), {"w": torch.ones(20_000_000)}
    saved = Checkpoints(tmp_path).save(0, weights, {"moments": moments}, {})
    saved.verify()
    path = saved.folder / "trainer.pt"
    subprocess.run(["cp", "--sparse=always", path, tmp_path / "holes"], check=True)
    (tmp_path / "holes").replace(path)
    assert path.stat().st_blocks < 1000 and torch.equal(saved.trainer_state()["moments"], moments)
    os.truncate(path, 1 << 40)
    with pytest.raises(CheckpointError, match="holes"):
        saved.trainer_state()


def test_superseded_checkpoints_are_removed_unless_they_are_to_be_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_every=2)
    for iteration in range(4):
        checkpoints.save(iteration, state(), {}, {})
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000000", "000002", "000003"]


@pytest.mark.component
def test_a_checkpoint_whose_files_stay_while_they_are_open_ends_no_run_and_goes_later(tmp_path: Path) -> None:
    """As on NFS; here another file is mounted over one of its own, which cannot be deleted then either."""
    checkpoints, other = Checkpoints(tmp_path / "run", keep_every=5), tmp_path / "other"
    checkpoints.save(1, state(), {}, {})
    other.write_text("")
    held = tmp_path / "run" / "000001" / "policy.safetensors"
    if subprocess.run(["mount", "--bind", other, held], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    try:
        checkpoints.save(2, state(), {}, {})
        assert checkpoints.iterations() == [2]
    finally:
        subprocess.run(["umount", "--lazy", *(tmp_path / "run").glob("*/policy.safetensors")], capture_output=True)
    checkpoints.save(3, state(), {}, {})
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["000003", "latest"]


def test_no_more_than_so_many_are_kept_and_the_best_beside_them(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for iteration in range(5):
        checkpoint = checkpoints.save(iteration, state(), {}, {})
        checkpoints.rate(checkpoint, [0.1, 0.6, 0.4, 0.6, 0.2][iteration])
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000001", "000003", "000004"]
    assert (tmp_path / "best").resolve().name == "000001"
    best = Checkpoints(tmp_path).best()
    assert best is not None and best.iteration == 1


def test_the_best_gives_way_to_a_better_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.best() is None
    for iteration, success_rate in enumerate([0.5, 0.1, 0.9]):
        checkpoints.rate(checkpoints.save(iteration, state(), {}, {}), success_rate)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000002"]
    assert (tmp_path / "best").resolve().name == "000002"


def test_a_crash_between_the_record_of_the_best_and_its_link_costs_no_checkpoint(tmp_path: Path) -> None:
    """The next start rates the checkpoint again: its value is recorded, and the link still leads to the one before."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.rate(checkpoints.save(0, state(), {}, {}), 0.1)
    better = checkpoints.save(1, state(), {}, {})
    (tmp_path / "best.json").write_text(json.dumps({"iteration": 1, "success_rate": 0.9}))
    checkpoints.rate(better, 0.9)
    assert (tmp_path / "best").resolve().name == "000001"
    checkpoints.save(2, state(), {}, {})
    best = checkpoints.best()
    assert best is not None and best.iteration == 1


def test_a_copy_that_followed_the_links_goes_on_and_keeps_the_best(tmp_path: Path) -> None:
    """As scp makes it: with folders in place of the links."""
    checkpoints = Checkpoints(tmp_path / "here")
    for iteration in range(3):
        checkpoints.rate(checkpoints.save(iteration, state(), {}, {}), [0.1, 0.9, 0.2][iteration])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / "best" / "manifest.json").exists() and not (tmp_path / "there" / "best").is_symlink()
    there = Checkpoints(tmp_path / "there", keep=1)
    there.rate(there.save(3, state(), {}, {}), 0.3)
    assert there.iterations() == [1, 3]
    assert [(there.root / name).resolve().name for name in ("best", "latest")] == ["000001", "000003"]


def test_the_best_is_forgotten_with_its_checkpoint(tmp_path: Path) -> None:
    """After somebody went back, another policy has its number."""
    checkpoints = Checkpoints(tmp_path)
    for iteration in range(3):
        checkpoints.rate(checkpoints.save(iteration, state(), {}, {}), [0.1, 0.2, 0.9][iteration])
    shutil.rmtree(tmp_path / "000002")
    again = checkpoints.save(2, state(), {}, {})
    assert checkpoints.best() is None
    checkpoints.rate(again, 0.3)
    assert (tmp_path / "best").resolve() == again.folder.resolve()


def test_success_and_reward_are_not_compared_with_each_other(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    rated = [(0.9, "success_rate"), (-50.0, "reward_mean"), (-60.0, "reward_mean"), (-40.0, "reward_mean")]
    for iteration, (value, figure) in enumerate(rated):
        checkpoints.rate(checkpoints.save(iteration, state(), {}, {}), value, figure)
        best = checkpoints.best()
        assert best is not None and best.iteration == [0, 1, 1, 3][iteration]
    assert json.loads((tmp_path / "best.json").read_text()) == {"iteration": 3, "reward_mean": -40.0}


@pytest.mark.parametrize("name", ["trainer.pt", "metrics.json", "policy.safetensors", "manifest.json"])
def test_a_bit_that_changed_in_any_file_is_noticed(tmp_path: Path, name: str) -> None:
    """In the manifest itself it is noticed unless the content means the same."""
    Checkpoints(tmp_path).save(0, state(), {"updates": 3, "moments": torch.ones(9)}, {"loss": 0.5})
    path = tmp_path / "000000" / name
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            found = Checkpoints(tmp_path).open(0)
            read = found.state(), found.trainer_state(), found.metrics()
        except CheckpointError:
            continue
        assert name == "manifest.json" and describe(read[0]) == describe(state())
        assert read[1]["updates"] == 3 and read[2] == {"loss": 0.5}


@pytest.mark.parametrize("made", ["compressed", "overlapping", "stretched"])
def test_a_trainer_state_that_would_unpack_to_more_than_it_takes_is_refused(tmp_path: Path, made: str) -> None:
    """Whoever made the checkpoint made its digests, too."""
    stretched = torch.zeros(1).expand(10**6, 10**6)
    moments = stretched if made == "stretched" else torch.zeros(1000)
    saved = Checkpoints(tmp_path).save(0, state(), {"moments": moments}, {})
    path = saved.folder / "trainer.pt"
    if made == "compressed":
        _rewrite(path, zipfile.ZIP_DEFLATED)
    if made == "overlapping":
        _rewrite(path, zipfile.ZIP_STORED, again=True)
    with pytest.raises(CheckpointError, match="compressed|overlap|fewer elements than it claims"):
        replace(saved, files={**saved.files, "trainer.pt": file_digest(path)}).trainer_state()


def _rewrite(path: Path, how: int, again: bool = False) -> None:
    with zipfile.ZipFile(path) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", how) as packed:
        for name, part in parts.items():
            packed.writestr(name, part)
        if again:  # a second name for the largest part
            largest = max(packed.infolist(), key=lambda part: part.file_size)
            packed.filelist += [largest] * 9
