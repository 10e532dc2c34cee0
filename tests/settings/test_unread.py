"""A key that nothing reads with the other settings is refused: it would silently do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from digirl_dist import Fleet
from digirl_dist.api.training import train
from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.cli.train import run_configuration
from digirl_dist.errors import SettingsError
from digirl_dist.settings import configuration, key_places, unread
from digirl_dist.settings.places import HERE, own_folder
from digirl_dist.train.__main__ import main as train_on_ranks

PAIRS = [
    ("predicate=os:getcwd", "success=predicate"),
    ("judge.screenshots=3", "success=judge"),
    ("offline.iterations=2", "train_mode=offline_to_online"),
    ("evaluation.episodes=8", "evaluation.every=2"),
    ("inference_batch=8", "inference=host"),
    ("dry_run_workers=3", "dry_run=true"),
    ("algorithm.grpo.group_size=8", "train_algorithm=grpo"),
    ("algorithm.kwargs.a=1", "algorithm.entry_point=mine:Mine"),
    ("algorithm.hindsight.achieved=os:getcwd", "algorithm.hindsight.most=1"),
    ("emulator.endless_updates=0.5", "emulator.updates=1"),
]
"""A key with a value, and what reads it."""
CONTRADICTIONS = [
    (
        ["parallel=single", "worker_ips=[10.0.0.2]"],
        "worker_ips is not read with parallel=single: add parallel=host, or",
    ),
    (["parallel=single", "ssh.connect_s=5"], "ssh.connect_s is not read with parallel=single"),
    (["collector=ray", "install.uv=true"], "install.uv is not read with collector.name=ray: add collector.name=ssh"),
    (["inference=host", "push_dtype=bfloat16"], "push_dtype is not read with inference=host: add inference=worker"),
    (
        ["train_algorithm=ppo", "algorithm.unsolved=0.5"],
        "algorithm.unsolved is not read with train_algorithm=ppo: add train_algorithm=filtered_bc or",
    ),
    (
        ["train_algorithm=grpo", "algorithm.entry_point=a:B"],
        "train_algorithm is not read with algorithm.entry_point=a:B",
    ),
    (
        ["train_mode=offline", "ahead=1"],
        "ahead is not read with train_mode=offline: add train_mode=onl",
    ),
    (
        ["emulator=android", "emulator.avd=a", "emulator.adb_server=h:1"],
        "emulator.adb_server is not read with emulator.serials=[]: set emulator.serials",
    ),
    (
        ["emulator=android", "emulator.serials=[a]", "emulator.boots_at_once=3"],
        "emulator.boots_at_once is not read with emulator.avd=null: set emulator.avd",
    ),
    (
        ["emulator=gymnasium", "emulator.success_reward=3", "success=predicate", "predicate=a:b"],
        "emulator.success_reward is not read with success=predicate: add success=environment",
    ),
    (
        ["train_algorithm=digirl", "algorithm.digirl.discount=0.1"],
        "discount is not read with algorithm.digirl.advantage=pap",
    ),
]


@pytest.mark.parametrize(("key", "reader"), PAIRS)
def test_a_key_without_what_reads_it_is_refused_and_with_it_accepted(key: str, reader: str) -> None:
    name = key.partition("=")[0]
    with pytest.raises(SettingsError, match=rf"^{name} is not read with .*, or leave {name} out$"):
        configuration.load(HERE, "host", [key, *(["algorithm.hindsight.most=0"] * ("hind" in key))])
    configuration.load(HERE, "host", [key, reader])


@pytest.mark.parametrize(("words", "said"), CONTRADICTIONS)
def test_of_two_keys_that_contradict_each_other_none_wins_silently(words: list[str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        configuration.load(HERE, "host", words)
    assert said in str(refused.value)


@pytest.mark.parametrize("word", ["predicate=null", "offline.data=[]", "algorithm.kwargs={}", "worker_ips=[]"])
def test_a_key_may_be_emptied(word: str) -> None:
    configuration.load(HERE, "host", ["parallel=single", word])


@pytest.mark.parametrize(("key", "value"), [("predicate", "os:getcwd")])
def test_a_file_may_not_hold_a_key_that_nothing_reads(key: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": ["host", "_self_"], key: value}))
    with pytest.raises(SettingsError, match=f"^{key} is not read with "):
        refuse_contradictions(configuration.load(str(tmp_path), "mine", ["dry_run=true"]))


def test_a_file_may_hold_what_a_choice_on_the_command_line_reads(tmp_path: Path) -> None:
    kept = {"worker_ips": ["10.0.0.2"], "judge": {"screenshots": 3}, "algorithm": {"grpo": {"group_size": 8}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": ["host", "_self_"], **kept}))
    refuse_contradictions(configuration.load(str(tmp_path), "mine", ["parallel=single"]))


def test_a_fleet_on_this_machine_refuses_workers() -> None:
    with pytest.raises(SettingsError, match="worker_ips is not read with parallel=single"):
        Fleet(["10.0.0.2"], parallel="single")


@pytest.mark.parametrize(
    ("key", "said"), [("rollout_size", "episodes=…"), ("seed", "seed=…"), ("train_iterations", "learns nothing")]
)
def test_a_fleet_refuses_settings_that_it_does_not_read(key: str, said: str) -> None:
    with pytest.raises(SettingsError, match=rf"Fleet\({key}=…\): .*{said}.*leave it out"):
        Fleet.inline(**{key: 1})


def test_what_only_ranks_read_is_refused_by_a_host_and_the_other_way_round(capsys: pytest.CaptureFixture[str]) -> None:
    said = "distributed.steps is read by python -m digirl_dist.train alone: leave it out"
    with pytest.raises(SettingsError, match=said):
        run_configuration(configuration.Source(HERE, "host", ("dry_run=true", "distributed.steps=5")))
    with pytest.raises(SettingsError, match=said):
        train(dry_run=True, distributed={"steps": 5})
    assert train_on_ranks(["rollout_size=8"]) == 2
    assert "rollout_size is read by digirl-dist run alone: leave it out" in capsys.readouterr().err


def test_every_rule_is_about_keys_that_there_are() -> None:
    known = {".".join(place) for place, _ in key_places.all_keys()}
    for rule in unread._RULES:
        assert {rule.key, rule.decider} <= known, rule
    assert set(unread._OF_A_HOST) | set(unread._OF_RANKS) <= known


def test_the_packages_own_files_hold_nothing_unread() -> None:
    for path in own_folder().glob("*.yaml"):
        unread.refuse_unread(configuration.load(HERE, path.stem, []))
