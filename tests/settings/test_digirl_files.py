"""DigiRL's own files run as they are, and every key of theirs is accounted for."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from agent.autoui_folders import FEATURES, make_autoui, make_blip, make_text_encoder
from chat_server import endpoint
from run_files import metrics
from settings.digirl_facts import DEFAULT, HOST, WORKER, write

from digirl_dist.cli.main import main
from digirl_dist.errors import SettingsError
from digirl_dist.settings import AutoUiSettings, Parallel, Settings, TrainMode, configuration
from digirl_dist.settings.digirl_files import Migrated, migrate
from digirl_dist.settings.digirl_keys import KEYS, became

ROOT = Path(__file__).resolve().parents[2]
ALL_53 = DEFAULT | HOST | WORKER
EDITED = {"worker_ips": ["10.0.0.2", "10.0.0.3"], "worker_username": "ann"}


def load(folder: Path, *overrides: str, name: str = "host") -> Settings:
    return configuration.load(str(folder), name, overrides)


def test_every_one_of_the_53_keys_is_accounted_for(tmp_path: Path) -> None:
    assert len(ALL_53) == 53
    for name in ("host", "worker"):
        became = migrate(write(tmp_path, "/home/ann", **EDITED), name).became
        assert set(became) == set(DEFAULT | (HOST if name == "host" else WORKER))
        assert all((each.settings or each.note) and not each.refused for each in became.values())


def test_the_documents_have_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "digirl.md").read_text(), re.MULTILINE)
    assert rows == list(KEYS)


def test_the_files_as_edited_become_settings_of_the_same_meaning(tmp_path: Path) -> None:
    settings = load(write(tmp_path, "/home/ann", **EDITED))
    assert isinstance(settings.agent, AutoUiSettings) and settings.agent.model == "/home/ann/Auto-UI-Base"
    assert settings.task_set == "/home/ann/digirl/digirl/environment/android/assets/task_set/general_{split}.txt"
    assert (settings.emulator.avd, settings.emulator.sdk_path) == ("test_Android", "/home/ann/.android")  # type: ignore[attr-defined]
    assert settings.rollout_size == 32, "16 on each of two workers"
    actor = settings.algorithm.digirl.actor  # type: ignore[attr-defined]
    assert (actor.max_examples, actor.batch_size, actor.rows_at_once) == (20 * 32 * 4, 4 * 32, 4)
    assert (actor.learning_rate, actor.clip_norm) == (1e-4, 0.01)
    digirl = settings.algorithm.digirl  # type: ignore[attr-defined]
    assert (digirl.advantage, digirl.top_share) == ("code", 0.1)
    cloning = load(tmp_path, "train_algorithm=filteredbc").algorithm
    block = cloning.filtered_bc  # type: ignore[attr-defined]
    assert (block.avoid, block.newest >= settings.trainer.replay_size) == (0, True)
    for shared in (settings.algorithm, cloning):
        assert shared.hindsight.most == shared.unsolved == 0 and not shared.erase_loops
    worker = load(tmp_path, name="worker")
    assert (worker.parallel, worker.eval_iterations, worker.rollout_size) == (Parallel.worker, 1, 16)


@pytest.mark.parametrize("own", ["off2on", "offline_to_online"])
def test_digirls_words_are_understood_in_its_files_and_in_ours(own: str, tmp_path: Path) -> None:
    theirs = load(
        write(tmp_path, "/home/ann", **EDITED), f"train_mode={own}", "train_algorithm=filteredbc", "lm_lr=3e-4"
    )
    assert theirs.train_mode is TrainMode.offline_to_online and theirs.train_algorithm == "filtered_bc"
    assert theirs.algorithm.filtered_bc.actor.learning_rate == 3e-4  # type: ignore[attr-defined]
    assert theirs.offline.data == ["/home/ann/logs/general-off2on-sft-trajectories.pt"]
    assert (theirs.offline.iterations, theirs.train_iterations) == (30, 430)
    ours = configuration.load("config/multimachine", "host", [f"train_mode={own}", "train_algorithm=filteredbc"])
    assert (ours.train_mode, ours.train_algorithm) == (theirs.train_mode, "filtered_bc")


def test_the_migrated_file_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = write(tmp_path / "theirs", "/home/ann", **EDITED)
    assert main(["migrate", str(theirs / "host.yaml")]) == 0
    ours = tmp_path / "ours"
    shutil.copytree(ROOT / "config" / "multimachine", ours)
    (ours / "mine.yaml").write_text(capsys.readouterr().out)
    assert load(ours, name="mine") == load(theirs)


def test_all_that_cannot_be_used_is_named_at_once_and_no_secret_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"gemini_key": "sk-hush", "do_sample": False, "agent_name": "cogagent", "train_algorithm": "ppo"}
    folder = write(tmp_path, **wrong)
    (folder / "host.yaml").write_text((folder / "host.yaml").read_text() + "learning_rate: 1\n")
    with pytest.raises(SettingsError) as refusal:
        load(folder)
    told = str(refusal.value)
    assert all(f"{key}: " in told for key in (*wrong, "learning_rate", "policy_lm", "worker_username", "adb_path"))
    assert "export GEMINI_API_KEY=" in told and "DigiRL has no such key" in told
    assert main(["migrate", str(folder / "host.yaml")]) == 2
    shown = capsys.readouterr()
    assert "# do_sample: refused (" in shown.out and "sk-hush" not in told + shown.out + shown.err


@pytest.mark.parametrize("odd", [None, "four", [1, "a"], {"a": 1}, float("inf"), float("nan"), 10**30, "a\nb: \x1b[2J"])
def test_odd_values_are_used_or_refused_by_name_and_stay_in_their_comments(odd: object) -> None:
    for key in KEYS:
        values = {**DEFAULT, **HOST, key: odd}
        found = {each: became(each, values) for each in (key, "epochs", "rollout_size", "train_iterations")}
        told, _, body = Migrated(found).to_yaml().partition("\ndefaults:")
        assert body and all(line.startswith("# ") and line.isprintable() for line in told.splitlines())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("defaults: 5\npolicy_lm: x\n", "cannot be read"),
        ("defaults: [host, {a: [b]}]\npolicy_lm: x\n", "cannot be read"),
        ("defaults: [../../../etc/hosts]\npolicy_lm: x\n", "cannot be read"),
        ("policy_lm: !!python/object/apply:os.system [id]\n", "is not valid"),
        ("policy_lm: {1: {2: 2024-13-45}}\n", "is not valid|cannot be read"),
        ("policy_lm: ${oc.env:HOME}\nlm_lr: ${nothing}\n", "cannot be read"),
        ("policy_lm: &a [*a]\n", "the aliases in .* unfold to"),
        ("policy_lm: x\npolicy_lm: y\n", "is not valid|cannot be read"),
        ("policy_lm: x\nbsize: four\n", "bsize"),
        ("policy_lm: x\nmax_steps: .inf\n", "max_steps"),
        ("\tpolicy_lm: x\n", "is not valid.* line 1"),
        ("- policy_lm\n", "no configuration of DigiRL's"),
        ("", "no configuration of DigiRL's"),
    ],
)
def test_hostile_files_are_refused_in_one_line(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    assert main(["migrate", str(tmp_path / "mine.yaml")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(told, line)


def test_what_is_no_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("pipe.yaml", "absent.yaml"):
        assert main(["migrate", str(tmp_path / name)]) == 2
        assert f"there is no file {tmp_path / name}" in capsys.readouterr().err


def test_our_own_files_are_not_taken_for_digirls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", str(ROOT / "config" / "multimachine" / "host.yaml")]) == 2
    assert "no configuration of DigiRL's" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(400)  # host and workers each import transformers
def test_with_machines_and_paths_edited_a_dry_run_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the tiny models need besides: their width of features, a phone in place of Android, a judge on loopback."""
    make_autoui(tmp_path / "Auto-UI-Base")
    tasks = tmp_path / "digirl/digirl/environment/android/assets/task_set"
    tasks.mkdir(parents=True)
    for split in ("train", "test"):
        (tasks / f"general_{split}.txt").write_text("Open the clock\nTurn on airplane mode\n")
    encoders = [make_blip(tmp_path / "blip"), make_text_encoder(tmp_path / "text")]
    folder = write(tmp_path / "config", tmp_path, **EDITED, critic_lm=str(encoders[1]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    with endpoint() as judge:
        words = [f"agent.vision_encoder={encoders[0]}", f"agent.image_features={FEATURES}", "agent.answer_length=8"]
        size = [
            "dry_run=true",
            "dry_run_workers=1",
            "bsize=2",
            "rollout_size=4",
            "train_iterations=1",
            "max_steps=2",
            "actor_epochs=1",
        ]
        host = ["--config-path", str(folder), "--config-name", "host"]
        assert main([*host, *words, *size, "emulator=phone", f"judge.base_url={judge.url}"]) == 0
    assert "is one of DigiRL's; `digirl-dist migrate" in capsys.readouterr().out
    run_folder = tmp_path / "logs" / "multimachine"
    [line] = metrics(run_folder)
    assert line["episodes"] == 4 and line["success_rate"] == 1.0, "as the judge says"
    assert (run_folder / "checkpoints" / "latest" / "policy.safetensors").is_file()
    assert len(judge.requests) == 4 and {request["key"] for request in judge.requests} == {"Bearer k"}
