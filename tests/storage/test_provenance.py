"""A run folder tells what its run was made of, and a run is not continued as another one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.protocol.messages import MachineFacts
from digirl_dist.settings import Settings, configuration, conversion, key_places
from digirl_dist.settings.keys import flat, types_of
from digirl_dist.settings.places import HERE
from digirl_dist.storage import provenance
from digirl_dist.storage.provenance import dependency_versions, machine_facts
from digirl_dist.tasks import Task
from digirl_dist.types import Json

pytestmark = pytest.mark.long_file(8)


@cache
def composed(*overrides: str) -> Settings:
    return configuration.load(HERE, "host", overrides)


def started(folder: Path, *overrides: str) -> None:
    (folder / "config.yaml").write_text(configuration.to_yaml(composed(*overrides)))


CORRIDOR = ("emulator=gymnasium", "emulator.entry_point=a:B", "agent=custom", "agent.entry_point=a:C")


@pytest.mark.parametrize("content", ["", "[1, 2]\n", "seed: [\n", "seed: 0\nseed: 1\n"])
def test_a_damaged_configuration_is_no_licence_to_make_another_run_of_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(RunFolderError, match=r"config.yaml .*; restore it, or remove it to continue with the settings"):
        provenance.refuse_changes(tmp_path, {"seed": 1})


@pytest.mark.component
@pytest.mark.parametrize(
    ("word", "before", "began"),
    [
        ("seed=1", "seed=0", ()),
        ("rollout_size=64", "rollout_size=128", ()),
        ("train_algorithm=grpo", "train_algorithm=filtered_bc", ()),
        ("algorithm.entry_point=my:Own", "algorithm.entry_point=None", ()),
        ("agent=generic", "agent.name=device", ()),
        ("agent.width=32", "agent.width=64", ()),
        ("agent.kwargs.width=8", "agent.kwargs={}", CORRIDOR),
        ("agent.kwargs={b: 1}", "agent.kwargs={'a': 1}", (*CORRIDOR, "agent.kwargs={a: 1}")),
        ("emulator=miniwob", "emulator.name=phone", ()),
        ("emulator.entry_point=a:D", "emulator.entry_point=a:B", CORRIDOR),
        ("emulator.id=B-v0", "emulator.id=A-v0", ("emulator=gymnasium", "emulator.id=A-v0")),
        ("emulator.observe=[goal]", "emulator.observe=[]", CORRIDOR),
        ("emulator.touch=a:touch", "emulator.touch=None", CORRIDOR),
        ("emulator.task=click-tab", "emulator.task=click-test", ("emulator=miniwob", "emulator.task=click-test")),
        ("emulator.image_size=[64,64]", "emulator.image_size=[]", ("emulator=rehearsal",)),
    ],
)
def test_what_may_not_change_is_refused_with_both_values(
    word: str, before: str, began: tuple[str, ...], tmp_path: Path
) -> None:
    started(tmp_path, *began)
    now = conversion.as_mapping(composed(*began, word))
    with pytest.raises(SettingsError) as refusal:
        provenance.refuse_changes(tmp_path, now)
    key, _, value = before.partition("=")
    value_now = dict(flat(now, whole=key_places.free_keys()))[key]
    asked, _, has = str(refusal.value).partition(", but the run in ")
    assert f", {key}={value_now}," in f", {asked}," and re.search(
        rf"( has|,) {re.escape(key)}={re.escape(value)}(,| and)", has
    )


def test_all_that_may_not_change_is_told_at_once(tmp_path: Path) -> None:
    started(tmp_path)
    now = conversion.as_mapping(composed("seed=1", "rollout_size=64", "agent=generic", "train_iterations=99"))
    with pytest.raises(SettingsError) as refusal:
        provenance.refuse_changes(tmp_path, now)
    assert str(refusal.value).startswith("rollout_size=64, seed=1, agent.name=generic, but the run in save_path=")
    assert " has rollout_size=128, seed=0, agent.name=device and " in str(refusal.value)


def test_every_key_that_may_not_change_is_one() -> None:
    """A key that was renamed would not be held any more."""
    for fixed in provenance._FIXED:
        group, _, name = fixed.partition(".")
        kinds = key_places.classes_at(fixed.split(".")[:-1])
        assert any(name in types_of(kind) for kind in kinds) if name else group in types_of(Settings), fixed


@pytest.mark.component
def test_what_may_change_is_recorded(tmp_path: Path) -> None:
    started(tmp_path)
    now = conversion.as_mapping(configuration.load(HERE, "host", ["train_iterations=99", "limits.boot_s=7"]))
    provenance.refuse_changes(tmp_path, now)
    changes = provenance.changes_of(tmp_path, now)
    assert changes == {"train_iterations": [14, 99], "limits.boot_s": [180.0, 7.0]}
    provenance.record_start(tmp_path, changes)
    provenance.record_start(tmp_path, {})
    first, second = map(json.loads, (tmp_path / "provenance.jsonl").read_text().splitlines())
    assert first["changes"] == changes and second["changes"] == {}
    assert first["packages"]["numpy"] and first["host"]["cores"] and first["command"] == list(sys.argv)


@pytest.mark.component
def test_a_commit_is_noted_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, run = tmp_path / "work", tmp_path / "run"
    work.mkdir()
    run.mkdir()
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    (work / "mine.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "mine.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (work / "mine.py").write_text("x = 2\n")
    monkeypatch.chdir(work)
    provenance.record_start(run, {})
    line = json.loads((run / "provenance.jsonl").read_text())
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert line["working_directory"]["commit"] == head
    assert line["working_directory"]["uncommitted"] is True


def test_a_worker_machine_is_recorded_once_until_it_changes(tmp_path: Path) -> None:
    record = provenance.WorkerRecord(tmp_path)
    for kind, cores in (("worker_machine", 4), ("worker_machine", 4), ("pushed", 5), ("worker_machine", 8)):
        record.listen(kind, {"worker": "w1", "cores": cores})
    record.listen("worker_machine", {"worker": "w2", "cores": 8})
    lines = [json.loads(line) for line in (tmp_path / "provenance.jsonl").read_text().splitlines()]
    assert [(line["worker"], line["cores"]) for line in lines] == [("w1", 4), ("w1", 8), ("w2", 8)]
    assert all(line["time"] > 0 for line in lines)


def test_the_facts_of_a_machine_fit_the_message_that_carries_them() -> None:
    facts = {**machine_facts(), "packages": dependency_versions()}
    sent = msgspec.convert(facts, MachineFacts)
    assert sent.cores >= 1 and sent.memory_bytes > 1 << 20 and sent.cpu and sent.packages["numpy"]


def measured(*overrides: str, tasks: Sequence[Task] = ()) -> Mapping[str, Json]:
    words = ("parallel=single", "task_mode=evaluate", *overrides)
    return provenance.measured(yaml.safe_load(configuration.to_yaml(composed(*words))), tasks)


@pytest.mark.component
@pytest.mark.parametrize(
    ("word", "before"),
    [
        ("task_split=test", "task_split=train"),
        ("task_set=multistep", "task_set=default"),
        ("task_mode=collect", "task_mode=evaluate"),
        ("seed=1", "seed=0"),
        ("rollout_size=64", "rollout_size=128"),
        ("max_steps=3", "max_steps=None"),
        ("emulator.shuffle_icons=True", "emulator.shuffle_icons=False"),
    ],
)
def test_episodes_that_measure_a_checkpoint_are_not_taken_for_others(tmp_path: Path, word: str, before: str) -> None:
    folder = tmp_path / "evaluation" / "000003"
    provenance.refuse_other_measurement(folder, measured(), {})
    assert not folder.exists(), "what is refused or not writes nothing"
    provenance.note_measurement(folder, measured())
    provenance.refuse_other_measurement(folder, measured("bsize=7", "eval_iterations=3"), {})  # may differ
    with pytest.raises(SettingsError, match=re.escape(f"{word}, but {folder} measures this checkpoint with {before} ")):
        provenance.refuse_other_measurement(folder, measured(word), {})
    folder.rename(folder.with_name("test-split"))
    provenance.refuse_other_measurement(folder, measured(word), {})


def test_episodes_of_a_file_of_tasks_that_has_changed_since_measure_nothing(tmp_path: Path) -> None:
    provenance.note_measurement(tmp_path, measured(tasks=[Task("a")]))
    with pytest.raises(SettingsError, match=r"tasks=1 with digest \w+, but .* with tasks=1 with digest \w+ ->"):
        provenance.refuse_other_measurement(tmp_path, measured(tasks=[Task("b")]), {})


def test_checks_of_a_measurement_ignore_a_key_that_the_note_lacks_and_one_that_went(tmp_path: Path) -> None:
    provenance.note_measurement(tmp_path, measured())
    path = tmp_path / "measurement.json"
    noted = json.loads(path.read_text())
    del noted["max_steps"]
    path.write_text(json.dumps({**noted, "emulator.gone": 3}))
    provenance.refuse_other_measurement(tmp_path, measured("max_steps=3"), {})


def test_a_damaged_note_of_a_measurement_is_named(tmp_path: Path) -> None:
    (tmp_path / "measurement.json").write_text("[1")
    with pytest.raises(RunFolderError, match=r"measurement\.json is damaged; rename"):
        provenance.refuse_other_measurement(tmp_path, measured(), {})
