"""Every configuration composes, and what is wrong is refused with the remedy before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from digirl_dist.errors import SettingsError
from digirl_dist.fleet.roster import worker_configs
from digirl_dist.settings import (
    GenericAgentSettings,
    GymnasiumSettings,
    Parallel,
    PhoneSettings,
    Settings,
    TaskMode,
    configuration,
    conversion,
)
from digirl_dist.settings.run_source import RunSource

pytestmark = pytest.mark.long_file(15)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "config/multimachine"
NAMES = sorted(path.stem for path in (ROOT / FOLDER).glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def load(*overrides: str, name: str = "host") -> Settings:
    return configuration.load(FOLDER, name, overrides)


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_composes(name: str) -> None:
    assert isinstance(load(name=name), Settings)


@pytest.mark.parametrize("group", ["emulator", "agent"])
def test_every_option_of_a_group_composes(group: str) -> None:
    for path in (ROOT / FOLDER / group).glob("*.yaml"):
        models = dict.fromkeys(["autoui", "vlm", "endpoint"], "model=x")
        needs = {"custom": "entry_point=a:b", "openenv": "app=a:b", **models}.get(path.stem)
        chosen = load(f"{group}={path.stem}", *([f"{group}.{needs}"] if needs else []))
        assert getattr(chosen, group).name == path.stem.removesuffix("_fine")


def test_what_others_understand_may_be_added_and_only_secrets_are_hidden() -> None:
    settings = load(
        "agent=vlm", "agent.model=x", "agent.processor.max_pixels=9", "success=judge", "judge.request={max_tokens: 5}"
    )
    assert settings.agent.processor == {"max_pixels": 9}  # type: ignore[attr-defined]
    assert settings.judge.request == {"temperature": 0.0, "max_tokens": 5}
    assert settings.algorithm.grpo.actor.rows_at_once == 2, "agent=vlm chooses few rows at once"
    assert settings.algorithm.ppo.rows_at_once == 2 and settings.algorithm.ppo.learning_rate == 1e-4
    shown = yaml.safe_load(configuration.to_yaml(settings))
    assert (shown["agent"]["max_new_tokens"], shown["judge"]["request"]["max_tokens"]) == (64, 5)


def test_the_configurations_say_what_they_are_for() -> None:
    assert load().parallel is Parallel.host and isinstance(load().emulator, PhoneSettings)
    assert load(name="worker").parallel is Parallel.worker
    assert load(name="eval").task_mode is TaskMode.evaluate


def test_the_agent_follows_the_emulator_unless_it_is_chosen() -> None:
    settings = load("emulator=gymnasium", "emulator.id=ALE/Pong-v5")
    assert isinstance(settings.emulator, GymnasiumSettings) and settings.emulator.id == "ALE/Pong-v5"
    assert isinstance(settings.agent, GenericAgentSettings)
    assert load("emulator=gymnasium", "agent=device").agent.name == "device"


def test_workers_may_be_names_or_mappings() -> None:
    settings = load("worker_ips=[10.0.0.2,{host: 10.0.0.3, bsize: 8}]")
    assert settings.worker_ips == ["10.0.0.2", {"host": "10.0.0.3", "bsize": 8}]


def test_workers_of_a_site_relay_unless_relays_are_off(tmp_path: Path) -> None:
    entries = "worker_ips=[{host: a, site: 7}, {host: 'b:2203', site: 7, site_address: '10.0.0.3'}, c]"
    found = worker_configs(load(entries))
    assert [(each.site, each.site_address) for each in found] == [("7", None), ("7", ("10.0.0.3", 22)), (None, None)]
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "off.yaml").write_text("defaults: [host, _self_]\nrelay: off\n")
    (tmp_path / "again.yaml").write_text(configuration.to_yaml(load(entries, "relay=off")))
    written = [configuration.load(str(tmp_path), name, [entries]) for name in ("off", "again")]
    for settings in (load(entries, "relay=off"), *written):
        assert settings.relay == "off" and not any(each.site for each in worker_configs(settings))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("relay=always", "relay must be auto or off"),
        ("worker_ips=[{host: h, python: 'a\0b'}]", "worker_ips[0].python has a NUL in it"),
        ("bsiez=2", "no key 'bsiez'; did you mean 'bsize'?"),
        ("learning_rate=2", "did you mean 'algorithm.filtered_bc.actor.learning_rate'?"),
        ("algorithm.reset_s=2", "did you mean 'emulator.reset_s' or 'limits.reset_s'?"),
        ("limits.rest_s=2", "no key 'limits.rest_s'; did you mean 'reset_s'?"),
        ("ssh.known_hosts=x", "no key 'ssh.known_hosts'; there are transport"),
        ("emulator.idd=3", "no key 'emulator.idd'; there are"),
        ("bsize=two", "bsize"),
        ("bsize=2.5", "bsize"),
        ("bsize=0", "bsize must be a whole number from 1 to 4,096, or auto"),
        ("media=some", "media must be none, failures, all or top-3"),
        ("dry_run=maybe", "dry_run"),
        ("train_algorithm=dqn", "train_algorithm"),
        ("emulator=iphone", "emulator: there is no 'iphone'; did you mean 'phone'?"),
        ("emulator=3", "emulator: there is no '3'; there are android"),
        ("trainer={}", "trainer: there is no '{}'; there are inprocess"),
        ("emulator=nothing", "there are android, androidworld, custom, gymnasium, miniwob, openenv, phone"),
        ("agent.processor.max_pixels=9", "no key 'agent.processor' with agent=device"),
        ("nothing=2", "no key 'nothing'; docs/reference/settings.md has the usual keys"),
        (
            "emulator.packages=minigrid",
            "emulator.packages must be a list, as emulator.packages=[minigrid], not 'minigrid'",
        ),
        ("worker_ips={host: a}", "worker_ips"),
        ("judge.request=3", "judge.request must be a mapping, as judge.request={a:b}, not 3"),
        ("limits=3", "limits must be given by its keys, as limits."),
        ("save_path=[a]", "save_path must be a path, not ['a']"),
        ("loggers=[[wandb]]", "loggers must be a list, as loggers=[a,b], not [['wandb']]"),
        ("offline.data=[[a]]", "offline.data must be a list, as offline.data=[a,b], not [['a']]"),
        ("emulator.name=miniwob", "emulator.name=miniwob chooses nothing: choose by emulator=miniwob"),
        ("parallel=cluster", "parallel must be one of single, host, worker, not 'cluster'"),
        ("evaluation.every=[1]", "evaluation.every must be a whole number from 0 to 1,000,000,000, not [1]"),
        ("dry_run=maybe", "dry_run must be true or false, not 'maybe'"),
        ("dry_run=3", "dry_run must be true or false, not 3"),
        ("emulator.shuffle_icons=7", "emulator.shuffle_icons must be true or false, not 7"),
        ("algorithm.erase_loops='2'", "algorithm.erase_loops must be true or false, not '2'"),
        ("agent=custom", "entry_point"),
        ("bsize", "not of the form key=value"),
        ("ssh.ping_s=15", "ssh.silence_s=12 must be at least twice ssh.ping_s=15: a link that is only quiet"),
        ("limits.silence_s=1.5", "limits.silence_s must be a number from 6 to 100,000,000, not 1.5"),
        ("temperature=1", "DigiRL's temperature is agent.temperature here"),
        ("emulator.max_steps=3", "there is no key 'emulator.max_steps'; did you mean 'max_steps'?"),
        ("capacity=100", "DigiRL's capacity is trainer.replay_size here"),
        ("lm_lr=1e-4", "DigiRL's lm_lr is algorithm.digirl.actor.learning_rate here"),
        ("bsize=[1", "bsize=[1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load(override)
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 600, "one clear message, not a traceback"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dry_run: 3", "dry_run must be true or false, not 3"),
        ("limits: {boot_s: true}", "limits.boot_s must be a number"),
        ("limits: {boot_s: x}", "limits.boot_s must be a number above 0"),
        ("limits: 3", "limits must be given by its keys, as limits.boot_s=…, not 3"),
        ("emulator: {name: miniwob}", "or `- override emulator: phone` to the defaults of a file"),
        ("evaluation: 3", "evaluation must be given by its keys, as"),
        ("emulator: miniwob", "emulator is chosen in the file's defaults, as `- override emulator: miniwob`"),
        ("train_iterations: [3]", "train_iterations must be a whole number from 0 to 1,000,000,000, not [3]"),
        ("worker_username: no", "worker_username must be a text or null, not False; on, off, yes and no need quotes"),
        ("task_set: on", "task_set must be a text"),
        ("task_set: '${x'", "task_set"),
        ("on: 1", "there is no key 'True', as keys are texts: on, off"),
    ],
)
def test_a_wrong_value_in_a_file_is_refused_as_on_the_command_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults: [host, _self_]\n{line}\n")
    with pytest.raises(SettingsError) as refusal:
        configuration.load(str(tmp_path), "mine", [])
    assert message in str(refusal.value)


def test_a_home_folder_needs_no_quotes() -> None:
    settings = load("save_path=~/runs/mine", "train_mode=offline", "offline.data=[~/a.parquet, ~ann/b.parquet]",
                    "worker_run_path='~/run, 2'")  # fmt: skip
    assert (settings.save_path, settings.worker_run_path) == ("~/runs/mine", "~/run, 2")
    assert settings.offline.data == ["~/a.parquet", "~ann/b.parquet"]


def test_truth_has_the_words_of_yaml_and_two_numbers() -> None:
    assert all(load(f"dry_run={word}").dry_run for word in ("true", "yes", "on", "1"))
    assert not any(load(f"dry_run={word}").dry_run for word in ("false", "no", "off", "0"))


def test_a_key_of_another_emulator_is_not_proposed() -> None:
    with pytest.raises(SettingsError, match=r"no key 'emulator.task' with emulator=gymnasium"):
        load("emulator=gymnasium", "emulator.task=CartPole-v1")


def test_unknown_names_and_folders_are_refused_with_what_there_is() -> None:
    with pytest.raises(SettingsError, match="did you mean 'host'"):
        load(name="hosts")
    with pytest.raises(SettingsError, match="config/nowhere is no folder"):
        configuration.load("config/nowhere", "host", [])


def test_secrets_are_redacted_in_the_run_folder() -> None:
    text = configuration.to_yaml(load("emulator=gymnasium", "+emulator.kwargs.api_key=hunter2"))
    assert "hunter2" not in text
    assert yaml.safe_load(text)["emulator"]["kwargs"]["api_key"] == "***"


def test_keyword_arguments_are_free() -> None:
    for override in ("emulator.kwargs={slope: 2}", "emulator.kwargs.slope=2"):
        emulator = load("emulator=gymnasium", override).emulator
        assert isinstance(emulator, GymnasiumSettings) and emulator.kwargs == {"slope": 2}


def test_per_worker_overrides_are_checked() -> None:
    merged = conversion.merged(GymnasiumSettings(id="A"), {"id": "B"}, "worker w1")
    assert merged.id == "B"
    with pytest.raises(SettingsError, match="worker w1: .*idd"):
        conversion.merged(GymnasiumSettings(), {"idd": "B"}, "worker w1")


def test_a_run_is_read_without_trust_although_it_has_words_of_its_own(tmp_path: Path) -> None:
    words = ("media=failures", "loggers=[]", "train_algorithm=digirl", "algorithm.digirl.advantage=code")
    (tmp_path / "config.yaml").write_text(configuration.to_yaml(load(*words)))
    settings = RunSource(str(tmp_path)).load()
    assert settings.media == "failures"
