"""Files that a stranger put in a run folder: links, pipes, holes and what does not end (faults, class 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from digirl_dist.cli.main import main
from digirl_dist.errors import CheckpointError, RunFolderError, UntrustedError
from digirl_dist.report.bundle import write_report
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.settings import regular_file
from digirl_dist.settings.run_source import RunSource
from digirl_dist.storage import atomic_files, json_lines
from digirl_dist.storage.checkpoint import read_checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder, existing_run

pytestmark = pytest.mark.component


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "bashrc"
    path.write_text("mine\n")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 1\n")
    return folder


@pytest.mark.parametrize("name", ["report.html", "report.html.part"])
def test_a_report_is_written_through_no_link(name: str, run: Path, victim: Path) -> None:
    (run / name).symlink_to(victim)
    write_report(ViewedRun(run))
    assert victim.read_text() == "mine\n" and (run / "report.html").is_file()
    assert not (run / "report.html").is_symlink() and not list(run.glob(".*.part"))


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", [".lock", "events.jsonl"])
def test_nothing_is_appended_to_or_emptied_through_a_link(
    name: str, link: Callable[[Path, Path], None], run: Path, victim: Path
) -> None:
    link(victim, run / name)
    with pytest.raises(RunFolderError):
        Events(run / name) if name == "events.jsonl" else RunFolder(run, "seed: 1\n")
    assert victim.read_text() == "mine\n"


def test_a_hub_snapshots_links_and_those_within_a_folder_are_followed_and_others_are_not(
    tmp_path: Path, victim: Path
) -> None:
    blob, snapshot = tmp_path / "models--x" / "blobs" / "b", tmp_path / "models--x" / "snapshots" / "1"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    blob.write_text("weights")
    (snapshot / "policy").symlink_to("../../blobs/b")
    (snapshot / "same").symlink_to("policy")
    assert regular_file.content(snapshot / "policy") == regular_file.content(snapshot / "same") == b"weights"
    (snapshot / "far").symlink_to(victim)
    with pytest.raises(OSError, match="link out of its folder"):
        regular_file.content(snapshot / "far")
    assert regular_file.content(snapshot / "far", named=True) == b"mine\n"


def test_a_pipe_holes_and_300000_names_are_refused_at_once(tmp_path: Path) -> None:
    tensors = {"w": ["0" * 32, "float32", [1]]}
    manifest, weights = tmp_path / "manifest.json", tmp_path / "policy.safetensors"
    manifest.write_text(json.dumps({"iteration": 0, "tensors": tensors, "files": {}, "policy": {}}))
    os.mkfifo(weights)
    with pytest.raises(CheckpointError, match="no regular file"):
        read_checkpoint(tmp_path).state()
    weights.unlink()
    weights.write_bytes(bytes(4096))
    os.truncate(weights, 8 << 30)
    with pytest.raises(CheckpointError, match="holes"):
        read_checkpoint(tmp_path).state()
    header = json.dumps({f"t{number}": {"data_offsets": [0, 0]} for number in range(30_000)}).encode()
    weights.unlink()
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="30,000 tensors, more than 20,000"):
        read_checkpoint(tmp_path).state()
    many = {f"t{n}": tensors["w"] for n in range(30_000)}
    manifest.write_text(json.dumps({"iteration": 0, "tensors": many, "files": {}, "policy": {}}))
    with pytest.raises(CheckpointError, match="30,000 tensors, more than 20,000"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoints", "evaluation/000001", "trajectories/.landing", "trajectories/.landing/000001"),
        *("trajectories/.landing/evaluate/000001", "trajectories/.landing/measure/000001-000000"),
        *("tensorboard", "wandb", "mlruns/0/run/metrics", "dry_run/jobs/run-localhost-0/blobs", "slurm", "adapters"),
    ],
)
def test_a_folder_that_is_a_link_out_of_the_run_is_named(name: str, run: Path, victim: Path) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(victim.parent)
    with pytest.raises(RunFolderError, match=f"{name} is a link out of the run folder"):
        existing_run(run)


def test_neither_is_it_followed_where_a_folder_of_runs_is_named(
    run: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "trajectories").symlink_to(victim.parent)
    for words in (["--bundle", str(run / "runs.html")], []):
        assert main(["view", str(run.parent), *words]) == 1
        assert "trajectories is a link out of the run folder" in capsys.readouterr().err
    assert not (run / "runs.html").exists()


def test_what_a_killed_process_left_of_a_file_is_swept_up(run: Path) -> None:
    left, other = run / f".config.yaml.{'0' * 16}.part", run / ".mine.part"
    left.touch()
    other.touch()
    with RunFolder(run, "seed: 1\n"):
        assert not left.exists() and other.exists()
    with pytest.raises(OSError, match="no"), atomic_files.appearing(run / "file") as part:
        raise OSError("no")
    assert not part.exists()


def test_lines_are_read_in_bounded_memory_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(1000)))
    monkeypatch.setattr(json_lines, "_MOST_MEMORY", 100 * 400)
    found = json_lines.read(path)
    assert found[-1] == {"n": 999} and 90 < len(found) < 150


@pytest.mark.parametrize(
    "content",
    [
        "predicate: os:system\nsuccess: predicate",
        "worker_ips: [127.0.0.1]",
        "worker_python: /bin/sh",
        "success: judge",
        "train_algorithm: digirl\nalgorithm: {digirl: {advantage: 'os:system'}}",
        "algorithm: {hindsight: {achieved: 'os:system'}}",
        "algorithm: {entry_point: 'os:system'}",
        "emulator: {name: gymnasium, id: 'antigravity:Env-v0'}",
        "agent: {name: custom, entry_point: 'os:system'}",
        "logger_project: ${oc.env:HOME}",
    ],
)
def test_what_the_configuration_of_a_run_folder_names_needs_trust(content: str, run: Path) -> None:
    groups = {"agent": "device", "emulator": "phone", "collector": "ssh", "engine": "transformers"}
    named = [f"{group}: {{name: {name}}}" for group, name in groups.items() if f"{group}:" not in content]
    (run / "config.yaml").write_text("\n".join([content, *named, "trainer: {name: inprocess}"]))
    with pytest.raises(UntrustedError, match="what would be called, opened or reached|refers to something else"):
        RunSource(str(run)).load()
    if "${" not in content:
        assert RunSource(str(run), trust=True).load().seed == 0
    if content.startswith("algorithm: {entry"):
        assert (
            RunSource(str(run), overrides=("algorithm.entry_point=mine:Own",)).load().algorithm.entry_point
            == "mine:Own"
        )
