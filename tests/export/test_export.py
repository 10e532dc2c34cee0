"""Runs are exported whole or not at all, in formats that their own readers take; what others said stays text."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from export import atif_format
from export.hub_stand_in import serving
from hostile_texts import GENERATED, HOSTILE
from image_files import encoded
from PIL import Image

from digirl_dist import export
from digirl_dist.child_process import environment
from digirl_dist.errors import CheckpointError, SettingsError, TrajectoryError
from digirl_dist.export.cards import inert
from digirl_dist.rollout.rollout import episode_id
from digirl_dist.storage import parquet
from digirl_dist.storage.datasets import read_datasets
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json

SECRET = "hf_" + "a" * 30
CONFIG = {
    "agent": {"name": "device", "model": "/home/ann/models/mine", "kwargs": {"files": ["/home/ann/words.txt"]}},
    "emulator": {
        "name": "phone",
        "kwargs": {"at": ["http://secret-host:8000", "https://secret-host", "ann@secret-host"]},
    },
    "task_set": "/home/ann/tasks.txt",
    "train_algorithm": "filtered_bc",
    "algorithm": {"filtered_bc": {"discount": 0.7}, "grpo": {"clip_high": 5}},
    "seed": 3,
    "worker_ips": ["10.0.0.7"],
    "worker_username": "ann",
    "judge": {"token": SECRET},
}
ACTIONS: list[Json] = [
    {"type": "tap", "x": 0.1, "y": 0.5, "said": "I tap"},
    {"type": "type", "text": "hi"},
    {"type": "back"},
]


def picture(shade: int, size: tuple[int, int] = (20, 30)) -> bytes:
    return encoded(Image.new("RGB", size, (shade, 0, 255 - shade)))


def episode(
    iteration: int, ticket: int, actions: Sequence[Json] = ACTIONS, text: str = "go", size: int = 30
) -> Trajectory:
    seen = [
        Observation(text, picture(10 * at, (20, size)), np.full(3, at, np.float32)) for at in range(len(actions) + 1)
    ]
    steps = [
        Step(before, action, -0.5, float(at), at == len(actions) - 1, False)
        for at, (before, action) in enumerate(zip(seen, actions, strict=False))
    ]
    asked = Ticket(iteration, ticket, Task(text, f"{text} {ticket}"), 7, iteration)
    return Trajectory(asked, episode_id(asked, "10.0.0.7", 0), "10.0.0.7", 0, steps, seen[-1], ticket == 1)


def run_with(folder: Path, *iterations: Iterable[Trajectory]) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "run.json").write_text('{"run_id": "abc"}')
    facts = {"name": "secret-host", "cpu": "Fast 9000", "cores": 2, "python": "3.11.7"}
    (folder / "provenance.jsonl").write_text(
        json.dumps({"version": "0.1.0", "host": facts, "command": ["/home/ann"]}) + "\n"
    )
    for number, episodes in enumerate(iterations):
        parquet.write(folder / "trajectories" / f"{number:06d}.parquet", episodes)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_with(tmp_path / "mine", [episode(0, 0), episode(0, 1)], [episode(1, 0)])


@pytest.mark.component
def test_a_data_set_is_one_for_datasets_and_for_offline_learning(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = export.export(run, "datasets", tmp_path / "out")
    found = datasets.load_dataset(str(made), cache_dir=str(tmp_path / "cache"))["train"]
    assert found.features["image"] == found.features["final_image"] == datasets.Image() and len(found) == 9
    assert found[2]["image"].size == found[2]["final_image"].size == (20, 30) and found[1]["final_image"] is None
    found.save_to_disk(tmp_path / "saved")
    before = read_datasets([str(run / "trajectories")])
    for place in (made / "data", tmp_path / "saved"):
        after = read_datasets([str(place)])
        assert {each.worker for each in after} == {"worker-1"}
        assert all(each.episode_id == episode_id(each.ticket, each.worker, each.slot) for each in after)
        assert [rows(each) for each in after] == [rows(each) for each in before]


@pytest.mark.component
def test_an_iteration_whose_episodes_were_all_refused_is_passed_over(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    run = run_with(tmp_path / "mine", [], [episode(1, 0)], [])
    for name in ("atif", "datasets"):
        export.export(run, name, tmp_path / name)
    assert [path.name for path in (tmp_path / "atif").iterdir()] == ["t1.0"]
    found = datasets.load_dataset(str(tmp_path / "datasets"), cache_dir=str(tmp_path / "cache"))["train"]
    assert len(found) == 3


def rows(one: Trajectory) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.to_table(one).drop(["worker", "episode_id"]).to_pylist()
    return found


def test_a_card_says_how_the_data_were_made_and_gives_nobody_away(run: Path, tmp_path: Path) -> None:
    card = (export.export(run, "datasets", tmp_path / "out") / "README.md").read_text()
    about = yaml.safe_load(card.split("---")[1])
    assert about["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*.parquet"}]
    assert "3 episodes, 9 steps" in card and "| go | 3 | 0.33 |" in card
    told = re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), card)
    assert "| algorithm.discount | 0.7 |" in told and "| agent.model | mine |" in told and "cpu Fast 9000" in told
    for hidden in ("/home/ann", "10.0.0.7", "secret-host", SECRET, "clip_high"):
        assert hidden not in told, hidden


def test_no_format_tells_the_name_of_a_worker(run: Path, tmp_path: Path) -> None:
    assert any(b"10.0.0.7" in file.read_bytes() for file in (run / "trajectories").iterdir())
    for name in ("atif", "datasets"):
        made = export.export(run, name, tmp_path / name)
        files = [path for path in made.rglob("*") if path.is_file()]
        assert not [path for path in files if b"10.0.0.7" in path.read_bytes() or "10.0.0.7" in str(path)]


@pytest.mark.parametrize("text", [*HOSTILE, "\n".join(GENERATED)])
def test_hostile_texts_are_text_in_cards(text: str) -> None:
    shown = inert(text)
    assert not re.search(r"[<>\[\]()`*_|!:/.\"'#~-]", re.sub(r"&#\d+;", "", shown)) and "\x1b" not in shown
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    drawn = markdown.render(f"| task |\n| --- |\n| {shown} |\n\n# {shown}\n")
    assert set(re.findall(r"<(\w+)", drawn)) == {"table", "thead", "tbody", "tr", "th", "td", "h1"}


def test_hostile_texts_in_every_field_harm_no_format(tmp_path: Path) -> None:
    told = [text.replace("\x00", "") for text in (*HOSTILE, *GENERATED)]
    episodes = [
        episode(0, at, [{"type": text, "x": 0.5, text: text, "said": text}], text) for at, text in enumerate(told)
    ]
    run = run_with(tmp_path / "mine", episodes)
    for name in ("atif", "datasets"):
        made = export.export(run, name, tmp_path / name)
        files = [path.relative_to(made) for path in made.rglob("*")]
        assert all(re.fullmatch(r"[\w./-]+", str(path)) for path in files), files
    found = [json.loads(path.read_text()) for path in sorted((tmp_path / "atif").rglob("*.json"))]
    assert {each["extra"]["task"] for each in found} == set(told)


def test_atif_has_what_the_format_demands(run: Path, tmp_path: Path) -> None:
    made = export.export(run, "atif", tmp_path / "out")
    assert sorted(path.name for path in made.iterdir()) == ["t0.0", "t0.1", "t1.0"]
    for path in made.rglob("trajectory.json"):
        content = msgspec.json.decode(path.read_bytes(), type=atif_format.Trajectory)
        assert [step.step_id for step in content.steps] == [1, 2, 3, 4]
        assert [step.source for step in content.steps] == ["user", "agent", "agent", "agent"]
        for step in content.steps[1:]:
            assert step.tool_calls and step.observation
            assert step.observation.results[0].source_call_id == step.tool_calls[0].tool_call_id
        shown = re.findall(r'"path": "([^"]+)"', path.read_text())
        assert [Image.open(path.parent / each).size for each in shown] == [(20, 30)] * 4
    first = content.steps[1]
    assert first.message == "I tap" and first.tool_calls[0].function_name == "tap"
    assert first.tool_calls[0].arguments == {"x": 0.1, "y": 0.5} and first.extra["log_prob"] == -0.5


@pytest.mark.parametrize("content", ["[" * 200_000, "[]", '{"run_id": "\\ud800"}', ""], ids=lambda text: text[:20])
def test_a_run_whose_id_cannot_be_read_has_its_folders_name(content: str, run: Path, tmp_path: Path) -> None:
    (run / "run.json").write_text(content)
    for path in export.export(run, "atif", tmp_path / "out").rglob("trajectory.json"):
        assert json.loads(path.read_text())["session_id"] == "mine"


@pytest.mark.parametrize("name", ["atif", "datasets"])
def test_a_damaged_run_and_one_without_episodes_leave_nothing(name: str, run: Path, tmp_path: Path) -> None:
    last = run / "trajectories" / "000001.parquet"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(TrajectoryError, match="000001.parquet"):
        export.export(run, name, tmp_path / "out")
    with pytest.raises(TrajectoryError, match="no training episodes"):
        export.export(run_with(tmp_path / "empty"), name, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "mine"]


@pytest.mark.parametrize("form", ["atif", "datasets"])
def test_the_files_of_a_run_are_listed_once_however_many_there_are(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost a look at all: an hour for ten thousand iterations."""
    listed: list[str] = []
    glob = Path.glob

    def listing(path: Path, pattern: str) -> Any:
        listed.append(pattern)
        return glob(path, pattern)

    long = run_with(tmp_path / "long", *([episode(number, 0)] for number in range(5)))
    monkeypatch.setattr(Path, "glob", listing)
    export.export(long, form, tmp_path / "exported")
    assert listed.count("[0-9]*.parquet") == 1


def test_what_exists_is_never_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for name in ("link", "empty", "mine"):
        with pytest.raises(SettingsError, match="is there already"):
            export.export(run, "datasets", tmp_path / name)
    with pytest.raises(SettingsError, match="no format 'csv': choose from atif, datasets, policy"):
        export.export(run, "csv", tmp_path / "out")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        export.export(run, "policy", tmp_path / "out")


@pytest.mark.component
def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """One iteration of 180 MB in one file."""
    pixels = np.random.default_rng(0).integers(0, 255, (20, 200, 250, 3), np.uint8)
    seen = [Observation("go", encoded(Image.fromarray(each))) for each in pixels]
    steps = [Step(each, 1, -0.5, 0.0, at == 19, False) for at, each in enumerate(seen)]
    asked = [Ticket(0, at, Task("t", "go"), 0, 0) for at in range(60)]
    run = run_with(
        tmp_path / "mine", [Trajectory(each, f"e{each.index}", "w", 0, steps, seen[0], True) for each in asked]
    )
    program = (
        "import sys, resource; from pathlib import Path; from digirl_dist.export import export\n"
        "import pyarrow.compute, digirl_dist.export.datasets\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "export(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    words = [sys.executable, "-c", program, str(run), "datasets", str(tmp_path / "out")]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, "MiB"


@pytest.mark.nightly
@pytest.mark.component
def test_an_export_is_pushed_to_a_hub_by_its_own_library(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with serving() as hub:
        own = {**environment(), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": hub.token}
        words = [sys.executable, "-m", "digirl_dist", "export", str(run), "--to", "datasets", "--push", "ann/phone"]

        def push(place: str, **variables: str) -> subprocess.CompletedProcess[str]:
            command = [*words, str(tmp_path / place)]
            return subprocess.run(command, env={**own, **variables}, capture_output=True, text=True, timeout=120)

        done = push("one")
        assert done.returncode == 0 and done.stdout.endswith("/commit/c0ffee\n"), done.stderr
        (made,) = hub.created
        assert (made["type"], made["organization"], made["name"]) == ("dataset", "ann", "phone")
        assert made.get("visibility") == "private" or made["private"]
        written = {str(path.relative_to(tmp_path / "one")): path for path in (tmp_path / "one").rglob("*.*")}
        assert {name: path.read_bytes() for name, path in written.items()} == hub.files
        refused = push("two", HF_TOKEN="hf_" + "x" * 34)
        assert refused.returncode == 1 and hub.refused
        assert "ann/phone cannot be pushed" in refused.stderr and "hf auth login" in refused.stderr
        assert "Traceback" not in refused.stderr and "hf_xxx" not in refused.stderr
        [later] = re.findall("`hf (upload ann/phone .+)`", refused.stderr)
        hf = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()", *shlex.split(later)]
        hub.files.clear()
        uploaded = subprocess.run(hf, env=own, capture_output=True, text=True, timeout=120)
        assert uploaded.returncode == 0, uploaded.stderr
        assert set(hub.files) == set(written)
        away = push("away", HF_ENDPOINT="http://127.0.0.1:1")
        assert away.returncode == 1 and "ann/phone cannot be pushed: " in away.stderr and "Traceback" not in away.stderr
        words[-1] = "no/such/name"
        assert push("three").returncode == 2 and not (tmp_path / "three").exists(), "before anything is written"
