"""The names that ``digirl_dist`` exports, and what they do without any worker."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_run import TASKS, WORKERS, append, episode, landed, make_run
from user_classes import Coin, Counter

import digirl_dist
from digirl_dist import Decision, Fleet, Observation, Policy, Run
from digirl_dist.api.training import compose, overrides
from digirl_dist.assembly.policy import agent_settings_of, describe_policy
from digirl_dist.child_process import environment
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator import Actions, BoxActions, DeviceActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.errors import (
    AgentError,
    CheckpointError,
    DigirlDistError,
    RunFolderError,
    SettingsError,
    TrajectoryError,
)
from digirl_dist.judge import with_verdict
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.settings import configuration
from digirl_dist.storage import episode_file, parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


def test_every_exported_name_is_documented() -> None:
    for name in digirl_dist.__all__:
        assert (getattr(digirl_dist, name).__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no attribute 'Flete'"):
        _ = digirl_dist.Flete  # type: ignore[attr-defined]


@pytest.mark.component
def test_the_package_is_imported_without_anything_heavy_and_train_is_a_function_in_any_order() -> None:
    program = (
        "import sys, digirl_dist\n"
        "heavy = [name for name in ('torch', 'numpy', 'pyarrow', 'hydra') if name in sys.modules]\n"
        "import digirl_dist.train.launch\n"
        "from digirl_dist import train\n"
        "print(heavy, callable(train), callable(digirl_dist.train))"
    )
    shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert shown.stdout.split() == ["[]", "True", "True"], shown.stderr


@pytest.mark.component
def test_readers_change_nothing_in_a_run_folder(folder: Path) -> None:
    transfer = folder / "trajectories" / ".landing" / "incoming" / "w1-0-3-1"
    transfer.parent.mkdir(parents=True)
    transfer.write_bytes(b"rows that a host is pulling")
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    run = Run(folder)
    run.config(), run.figures(), run.evaluations(), run.events(), run.episodes(), run.steps(), run.policy()
    run.explain(run.episode("t1.0"))
    ViewedRun(folder).follow(everything=True)
    assert Store(folder / "trajectories").read(0)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


def test_a_run_is_read_as_tables(folder: Path) -> None:
    run = Run(folder)
    assert run.metrics()["success_rate"].tolist() == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert run.config()["agent"]["width"] == 8 and run.checkpoints() == [0, 1, 2, 3]
    assert (run.events()["event"] == "episode").sum() == 18
    table = run.episodes().to_pandas()
    assert table.groupby("iteration").success.sum().tolist() == [0, 2, 4]
    assert set(table.task) == set(TASKS) and set(table.steps) == {3}
    assert table[table.key == "t1.3"].trouble.tolist() == ["the emulator hung"]
    assert run.steps().count_rows() == 54


def test_odd_numbers_and_half_characters_of_a_stranger_end_no_reader(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    odd = {"checkpoint": 1, "\ud800": 1, "purpose": "\ud800", "success_rate": 10**400, "reward_mean": 10**400}
    append(folder / "evaluation.jsonl", odd)
    append(folder / "metrics.jsonl", {"iteration": 1, **odd})
    append(folder / "events.jsonl", {"event": "worker_lost", "reason": "a\udcffb", "attempt": 10**400})
    run = Run(folder)
    assert run.events()["reason"].tolist()[-1] == "a?b" and run.evaluations()["?"].tolist() == [1]
    assert "0.00 &#8594; 0.00" in run._repr_html_() and len(run.metrics()) == 2


def test_verdicts_of_no_episode_leave_none(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    (folder / "verdicts").mkdir()
    append(folder / "verdicts" / "judge.jsonl", {"judge": {}})
    append(folder / "verdicts" / "judge.jsonl", {"key": "t0.0", "episode_id": "0-0", "score": "\ud800"})
    assert len(Run(folder).episodes("judge")) == 0


def test_an_episode_has_its_steps_and_pictures(folder: Path) -> None:
    episodes = Run(folder).episodes()
    won = episodes.take(episodes.to_pandas().query("success").index)
    assert len(won) == 6 and all(one.success for one in won)
    assert [one.ticket.key for one in episodes.take(episodes.to_pandas().success)] == [one.ticket.key for one in won]
    with pytest.raises(IndexError, match="mask"):
        episodes.take([True, False])
    first = won[0]
    assert repr(first) == f"<success at 'open the clock' in 3 steps, reward 1, iteration 1, worker {WORKERS[0]}>"
    assert len(repr(first.steps[0])) < 300 and "bytes>" in repr(first.steps[0])
    assert first.images[0].size == (108, 192) and len(first.images) == 4
    assert "✓" in first._repr_html_() or "&#10003;" in first._repr_html_()
    assert Run(folder).episode("t1.0").ticket.key == first.ticket.key
    with pytest.raises(TrajectoryError, match="no episode t9"):
        Run(folder).episode("t9.9")


@pytest.mark.component
def test_a_policy_acts_in_three_lines(folder: Path) -> None:
    policy = Run(folder).policy()
    decision = policy.act(Observation("open the clock", episode(0, 0, True).steps[0].observation.image), seed=3)
    assert isinstance(decision, Decision) and decision.action["type"] in (
        "tap",
        "enter",
        "back",
        "home",
        "swipe",
        "done",
    )
    assert policy.version == 3 and Run(folder).policy(1).version == 1
    with pytest.raises(TypeError, match="observation must be an Observation"):
        policy.act(Run(folder).episode("t1.0").images[0])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="no checkpoint 7; kept are 0, 1, 2, 3"):
        Run(folder).policy(7)


def test_a_checkpoint_that_does_not_name_its_agent_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "old", iterations=1)
    manifest = folder / "checkpoints" / "latest" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "policy": {}}))
    with pytest.raises(CheckpointError, match="does not say which agent"):
        Run(folder).policy()


@pytest.mark.parametrize(
    "shape",
    [
        *({"image_size": each} for each in ([0, 8], [10**400, 8], [1e308, 8], [8], "x", None)),
        *({"vector_size": each} for each in (10**400, -1, "x")),
        *({"actions": each} for each in (5, {"kind": "device", "useful": [[1]]}, {"kind": "discrete", "n": 10**400})),
        {"actions": {"kind": "box", "low": [10**400], "high": [1]}},
    ],
)
def test_shapes_of_no_emulator_are_refused(tmp_path: Path, shape: dict[str, Any]) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    manifest = folder / "checkpoints" / "latest" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["policy"]["emulator"] |= shape
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="does not say which agent"):
        Run(folder).policy()


@pytest.mark.parametrize(
    "actions",
    [
        DeviceActions(("tap", "type")),
        DiscreteActions(4),
        BoxActions((-1.0, float("-inf")), (1.0, float("inf"))),
        ProductActions((DiscreteActions(2), BoxActions((0.0,), (1.0,)))),
    ],
)
def test_a_checkpoint_tells_the_shapes_that_its_agent_fits(tmp_path: Path, actions: Actions) -> None:
    agent = "device" if isinstance(actions, DeviceActions) else "generic"
    settings, spec = compose("host", {"agent": agent, "dry_run": True}), EmulatorSpec(actions, 3, (20, 10))
    checkpoints = Checkpoints(tmp_path, policy=describe_policy(settings, spec))
    checkpoints.save(0, {"weight": torch.zeros(1)}, {}, {})
    assert agent_settings_of(Checkpoints(tmp_path).open(0)) == (settings.agent, spec)


def test_an_explanation_has_probabilities_and_what_the_update_made_of_each_step(folder: Path) -> None:
    run = Run(folder)
    kept, failed = run.explain(run.episode("t1.0")), run.explain(run.episode("t1.5"))  # the newest failure
    assert sum(kept.probabilities[0].kinds.values()) == pytest.approx(1, abs=1e-5)
    cells = np.array(kept.probabilities[0].cells)
    assert cells.shape[0] > cells.shape[1] and cells.sum() == pytest.approx(1, abs=1e-4)
    assert all(outcome.kept for outcome in kept.outcomes) and len(kept.log_probs) == 3
    # It ends as all successes here do, so not even its end is avoided.
    assert [outcome.kept for outcome in failed.outcomes] == [False, False, False]
    assert all("return 0" in outcome.reason for outcome in failed.outcomes)


@pytest.mark.component
@pytest.mark.parametrize("algorithm", ["digirl", "grpo"])
def test_other_algorithms_explain_themselves_too(tmp_path: Path, algorithm: str) -> None:
    more = {"algorithm": {"grpo": {"group_size": 2}}} if algorithm == "grpo" else {}
    run = Run(make_run(tmp_path / algorithm, iterations=2, train_algorithm=algorithm, **more))
    found = [run.explain(run.episode(f"t1.{index}")) for index in range(6)]
    assert all(not one.no_outcomes and len(one.outcomes) == 3 for one in found)
    assert any(outcome.advantage for one in found for outcome in one.outcomes)


def test_an_episode_is_found_as_soon_as_it_landed_and_stays_the_same_row(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    run, one = Run(folder), episode(1, 4, True)
    assert len(run.episodes()) == 6
    landing = folder / "trajectories" / ".landing" / "000001" / "000001-00004.episode"
    landing.parent.mkdir(parents=True)
    episode_file.write(landing, one)
    append(folder / "events.jsonl", landed(one, 1.9e9))
    assert run.episodes().to_pandas().iloc[6].time == 1.9e9
    assert run.explain(run.episode("t1.4")).no_outcomes.startswith("update 1 left no table: ")
    parquet.write(folder / "trajectories" / "000001.parquet", [episode(1, 0, False), one])
    landing.unlink()
    assert run.episode("t1.4").success and len(run.episodes()) == 8 and run.index.find("t1.4") == 6


def test_why_a_ticket_ran_again_is_told_of_its_own_episode(tmp_path: Path) -> None:
    """Numbers of tickets repeat: in each iteration, and in evaluations between."""
    folder = make_run(tmp_path / "run", iterations=1)
    places = [{"iteration": 0, "ticket": 1, "purpose": purpose} for purpose in ("evaluate", "train")]
    for place in (places[0], {**places[0], "iteration": [9]}):
        append(folder / "events.jsonl", {"event": "episode_retried", **place, "reason": "that of the evaluation"})
    append(folder / "events.jsonl", landed(episode(0, 1, True), 1.9e9))
    (row,) = Run(folder).episodes().to_pandas().query("key == 't0.1'").itertuples()
    assert row.time == 1.9e9 and row.trouble == ""


def test_an_episode_that_is_to_be_judged_is_found_with_its_verdict(tmp_path: Path) -> None:
    """Its row kept what the emulator had said of it."""
    folder, one = tmp_path / "run", episode(0, 4, False)
    landing = folder / "trajectories" / ".landing" / "000000" / "000000-00004.episode"
    landing.parent.mkdir(parents=True)
    (folder / "config.yaml").write_text("success: judge\n")
    episode_file.write(landing, one)
    run = Run(folder)
    assert len(run.episodes()) == 0
    parquet.write(folder / "trajectories" / "000000.parquet", [with_verdict(one, True)])
    landing.unlink()
    assert run.episodes().table["success"].to_pylist() == [True] and run.episode("t0.4").reward == 1.0


@pytest.mark.component
def test_threads_may_share_a_run_and_processes_may_be_sent_its_episodes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    for number in range(1, 30):
        file = folder / "trajectories" / f"{number:06d}.parquet"
        parquet.write(file, [episode(number, index, True, steps=1) for index in range(4)])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run = Run(folder)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: run.episodes(), range(8)))
    finally:
        sys.setswitchinterval(before)
    assert [len(each) for each in found] == [6 + 29 * 4] * 8
    for each in (found[0], pickle.loads(pickle.dumps(found[0]))):
        keys = each.table["key"].to_pylist()
        assert [f"t{one.ticket.iteration}.{one.ticket.index}" for one in each] == keys and len(set(keys)) == len(keys)


def test_one_episode_is_read_without_the_files_of_other_iterations(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", iterations=2))
    assert run.episode("t1.3").ticket.key[:2] == (1, 3) and len(run.index) == 6
    assert len(run.episodes()) == 12
    for key in ("t9.9", "t" + "9" * 5000 + ".1", "t١.1", "../config"):
        with pytest.raises(TrajectoryError, match="has no episode"):
            run.episode(key)


def test_a_file_that_is_being_copied_is_read_once_it_is_whole_and_others_types_do_no_harm(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "[a] run", iterations=2))
    first, second, third = (run.folder / "trajectories" / f"{number:06d}.parquet" for number in range(3))
    whole, rows = second.read_bytes(), pq.read_table(first)
    second.write_bytes(whole[:1000])
    place = rows.schema.get_field_index("seed")
    pq.write_table(rows.set_column(place, "seed", rows["seed"].cast(pa.int32())), first)
    place = rows.schema.get_field_index("success")
    pq.write_table(rows.set_column(place, "success", pa.array(["maybe"] * rows.num_rows)), third)
    with pytest.warns(UserWarning, match="what is in it is left out"):
        assert len(run.episodes()) == 0
    assert [note.split(" is not")[0] for note in run.index.notes] == [first.name, second.name, third.name]
    second.write_bytes(whole)
    with pytest.warns(UserWarning, match=first.name):
        assert len(run.episodes()) == 6
    assert len(run.index.notes) == 2


def test_a_folder_without_a_run_is_refused_and_a_run_without_steps_has_none(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").touch()
    assert Run(tmp_path / "new").steps().to_table(columns=["task", "action"]).num_rows == 0
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        Run(tmp_path)
    (tmp_path / "new" / "trajectories").mkdir()
    (tmp_path / "new" / "trajectories" / "000000.parquet").touch()
    with pytest.raises(TrajectoryError, match="trajectories cannot be read: .*000000.parquet"):
        Run(tmp_path / "new").steps()


def test_a_run_that_has_just_begun_has_tables_with_columns(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    run = Run(tmp_path)
    assert run.metrics().empty and {"iteration", "success_rate", "collect_s"} <= set(run.metrics().columns)
    run.metrics().plot("iteration", "success_rate")
    assert run.evaluations().query("checkpoint == 3").empty and run.events().query("event == 'episode'").empty


MISUSES: dict[str, Callable[[Run], object]] = {
    "folder must be the path of a folder": lambda run: Run(3),  # type: ignore[arg-type]
    "folder must be the path": lambda run: Policy.from_folder(None),  # type: ignore[arg-type]
    "destination must be the path": lambda run: run.export("atif", 3),  # type: ignore[arg-type]
    "key must be that of an episode, as 't12.5', not 3": lambda run: run.episode(3),  # type: ignore[arg-type]
    "episode must be an episode": lambda run: run.explain(3),  # type: ignore[arg-type]
    "version=1.0 is no whole number": lambda run: run.policy(1.0),  # type: ignore[arg-type]
    "seed=1180591620717411303424 is no whole number": lambda run: Policy(lambda: Coin(Counter.spec), seed=2**70),
    "version='x' is no whole number": lambda run: run.explain("t1.0", "x"),  # type: ignore[arg-type]
    "workers must be a list of machines": lambda run: Fleet(3),  # type: ignore[arg-type]
    "workers are a list of machines": lambda run: Fleet({"host": "a"}),  # type: ignore[arg-type]
    "save_path must be the path": lambda run: Fleet.inline(save_path=3),
    "agent must be a class or function": lambda run: Policy(3),  # type: ignore[arg-type]
    "which lacks act(observations: Sequence[Observation], ": lambda run: Policy(int),  # type: ignore[arg-type]
    "state must be a state_dict": lambda run: Policy(lambda: Coin(Counter.spec), 3),  # type: ignore[arg-type]
    "holds no policy -> name": lambda run: Policy.from_folder(run.folder),
    "checkpoint must be a Checkpoint": lambda run: Policy.load(3),  # type: ignore[arg-type]
    "seed=-1 is no whole number": lambda run: run.policy().act(run.episodes()[0].steps[0].observation, seed=-1),
    "each of observations must be": lambda run: run.policy().probabilities([3]),  # type: ignore[list-item]
    "observations must be a list": lambda run: run.policy().probabilities(Observation()),  # type: ignore[arg-type]
    "places must be a list of numbers": lambda run: run.episodes().take(3),  # type: ignore[arg-type]
    "not ['x']": lambda run: run.episodes().take(["x"]),  # type: ignore[list-item]
    "places are -1 to 0": lambda run: run.episodes().take([-1, 0]),
    "there is no episode 99": lambda run: run.episodes()[99],
    "place must be a whole number or a slice": lambda run: run.episodes()["x"],  # type: ignore[call-overload]
    "config must be the name of a YAML file": lambda run: digirl_dist.train({"dry_run": True}),  # type: ignore[arg-type]
    "config_path must be the path": lambda run: digirl_dist.train(config_path=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("said", MISUSES)
def test_a_wrong_argument_is_named_with_one_that_would_do(said: str, folder: Path) -> None:
    with pytest.raises((TypeError, IndexError, DigirlDistError)) as refusal:
        MISUSES[said](Run(folder))
    assert said in str(refusal.value)


def test_an_own_agent_acts_and_says_that_it_tells_no_probabilities() -> None:
    policy = Policy(lambda: Coin(Counter.spec))
    assert policy.act(Observation(vector=np.zeros(1, np.float32)), seed=1) == policy.act(
        Observation(vector=np.zeros(1, np.float32)), seed=1
    )
    with pytest.raises(AgentError, match="Coin does not tell"):
        policy.probabilities([])


@pytest.mark.parametrize(
    "value",
    ["plain", "with, comma", "it's", '"quoted"', "a\\b", "${seed}", "[1, 2]", "{a: 1}", "null", "ümlaut =", " x "],
)
def test_any_text_reaches_the_settings_as_it_is(value: str) -> None:
    written = list(overrides({"agent": {"name": "custom", "entry_point": value, "kwargs": {"word": [value, 1, None]}}}))
    settings = configuration.load("config/multimachine", "host", written)
    assert settings.agent.entry_point == value  # type: ignore[attr-defined]
    assert settings.agent.kwargs["word"] == [value, 1, None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["plain", "a b", "a-b", "a:b", "a=b", "a,b", "a\\b", "{a}", "(", "]", "a.b", "${seed}"])
def test_a_mapping_reaches_the_settings_as_it_is(key: str) -> None:
    kwargs = {"outer": [{key: {key: "value"}}], "numbers": [np.int64(2), np.True_], "path": Path("it's")}
    written = list(overrides({"agent": {"name": "custom", "entry_point": "a:b", "kwargs": kwargs}}))
    settings = configuration.load("config/multimachine", "host", written)
    assert settings.agent.kwargs == {**kwargs, "path": "it's"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["ümlaut", "it's", "a#b", "12", "1e5", "-inf", "", 3, None])
def test_a_key_that_the_grammar_lacks_is_refused_by_name(key: object) -> None:
    with pytest.raises(SettingsError, match=rf"the key {re.escape(repr(key))} of a mapping cannot be given here"):
        list(overrides({"emulator": {"name": "gymnasium", "kwargs": {key: 1}}}))


def test_a_worker_of_a_fleet_may_be_a_mapping() -> None:
    with Fleet(["10.0.0.2", {"host": "10.0.0.3", "bsize": 8}]) as fleet:
        assert fleet._settings.worker_ips == ["10.0.0.2", {"host": "10.0.0.3", "bsize": 8}]


def test_a_class_stands_for_its_import_path() -> None:
    assert list(overrides({"algorithm": {"entry_point": Policy}})) == [
        "algorithm.entry_point='digirl_dist.api.policy:Policy'"
    ]


def test_a_fleet_refuses_what_is_wrong_before_it_connects() -> None:
    with pytest.raises(SettingsError, match=r"rollout_siz.*rollout_size"):
        Fleet(["10.0.0.2"], rollout_siz=3)
    with pytest.raises(SettingsError, match="worker_ips is empty"):
        Fleet()
    with pytest.raises(SettingsError, match=r"a list of machines: Fleet\(\['10.0.0.2'\]\)"):
        Fleet("10.0.0.2")
    for key, said in (("agent", "of the policy"), ("task_mode", "learns nothing")):
        with pytest.raises(SettingsError, match=rf"Fleet\({key}=…\): .*{said}.*leave it out"):
            Fleet.inline(**{key: "custom"})
    nobody = Policy(lambda: Coin(Counter.spec))
    with Fleet.inline() as fleet:
        for wrong, said in WRONG:
            with pytest.raises(SettingsError, match=said):
                fleet.collect(nobody, **wrong)
        with pytest.raises(TypeError, match="policy must be a Policy"):
            fleet.collect("runs/demo")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="this fleet is closed"):
        fleet.collect(nobody)


def test_a_fleet_leaves_a_training_run_as_it_is(folder: Path, tmp_path: Path) -> None:
    before = (folder / "config.yaml").read_bytes(), Run(folder).checkpoints()
    with pytest.raises(SettingsError, match="that is a training run, .* name a new folder"):
        Fleet.inline(save_path=folder)
    assert ((folder / "config.yaml").read_bytes(), Run(folder).checkpoints()) == before
    own = tmp_path / "own"
    own.mkdir()
    for _ in range(2):  # a later fleet may use the folder again
        Fleet.inline(save_path=own).close()
        (own / "config.yaml").write_text("task_mode: evaluate")


def test_a_policy_that_has_learned_since_is_another_one_to_a_fleet(folder: Path, tmp_path: Path) -> None:
    policy = Run(folder).policy()
    with Fleet.inline(save_path=tmp_path / "own") as fleet:
        assert [fleet._checkpoint(policy).iteration for _ in range(2)] == [0, 0]
        with torch.no_grad():
            next(iter(policy.agent.parameters())).add_(1)  # type: ignore[attr-defined]
        learned = fleet._checkpoint(policy)
        assert learned.iteration == 1
        assert torch.equal(learned.state()["_saliency"], policy.agent.state_dict()["_saliency"])
        assert Policy.load(learned).settings == policy.settings, "it tells its agent"
        settings, spec = agent_settings_of(learned)
        with pytest.raises(SettingsError, match="this fleet runs another agent.*/own; open a Fleet with another"):
            fleet._checkpoint(Policy(replace(settings, width=16).build(spec)))  # type: ignore[call-arg]
        Store(fleet._folder / "trajectories").append(CollectionResult(0, [episode(0, 0, True)]))
    (tmp_path / "own" / "config.yaml").write_text(configuration.to_yaml(fleet._settings))
    explanation = Run(tmp_path / "own").explain("t0.0")
    assert explanation.probabilities and explanation.no_outcomes.startswith("update 0 left no table: ")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tasks": "press-play"}, "tasks are a list"),
    ({"tasks": []}, "tasks are a list"),
    ({"tasks": ["pres-play"]}, "did you mean 'press-play'"),
    ({"tasks": 3}, "tasks are a list"),
    ({"episodes": 0}, "no whole number from 1"),
    ({"episodes": -1}, "no whole number from 1"),
    ({"episodes": 10**9}, "no whole number from 1 to 1,000,000"),
]


def test_an_agent_that_needs_arguments_is_refused_with_the_way_to_give_them() -> None:
    said = r"Coin cannot be made: Policy\(Coin, spec=fleet.spec\) gives it .*: missing .* argument: 'spec'"
    with pytest.raises(SettingsError, match=said):
        Policy(Coin)


def test_an_agent_is_made_from_the_shapes_of_the_fleet_as_a_run_makes_it() -> None:
    with Fleet.inline(emulator=Counter) as fleet:
        assert fleet.spec == Counter.spec
        assert Policy(Coin, spec=fleet.spec).act(Observation(vector=np.zeros(2, np.float32)), seed=1).action in (0, 1)
        assert Policy(OnlyActs, spec=fleet.spec).act(Observation()).action == 1
        assert [fleet._checkpoint(Policy(OnlyActs, spec=fleet.spec)).iteration for _ in range(2)] == [0, 1]
        with pytest.raises(SettingsError, match="something else acts"):  # both lack weights that would tell them apart
            fleet._checkpoint(Policy(type("Other", (OnlyActs,), {}), spec=fleet.spec))


class OnlyActs:
    def __init__(self, spec: EmulatorSpec) -> None:
        self.spec = spec

    def act(self, observations: Any, rngs: Any) -> list[Decision]:
        return [Decision(1, 0.0) for _ in observations]


def test_a_class_stands_for_itself_with_and_without_arguments() -> None:
    class Env(gymnasium.Env[Any, Any]):
        pass

    said = list(overrides({"emulator": Env, "agent": Coin, "algorithm": {"entry_point": Counter, "kwargs": {"x": 1}}}))
    assert said[0] == "emulator=gymnasium" and said[1].endswith(".Env'") and said[2] == "agent=custom"
    assert said[4:] == [f"algorithm.entry_point='{Counter.__module__}:Counter'", "algorithm.kwargs.x=1"]
    assert next(overrides({"emulator": {"entry_point": Counter, "kwargs": {"length": 2}}})) == "emulator=custom"


class Stubborn(Coin):
    """Loads nothing."""

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> Any:
        raise TypeError("no, thank you")


def test_an_agent_that_cannot_load_its_weights_is_named_with_its_line() -> None:
    said = r"do not fit the agent: Stubborn.load_state_dict: TypeError: no, thank you \(at .*_interface.py:\d+ in load"
    with pytest.raises(CheckpointError, match=said):
        Policy(lambda: Stubborn(Counter.spec), state={})


def test_steps_have_the_columns_that_a_run_got_later(tmp_path: Path) -> None:
    """Review, face B10: the first file's columns were those of all."""
    run = make_run(tmp_path / "run", iterations=2)
    steps = Run(run).steps().count_rows()
    first = run / "trajectories" / "000000.parquet"
    pq.write_table(pq.read_table(first).drop_columns(["achieved"]), first)
    assert Run(run).steps().to_table(columns=["achieved"]).num_rows == steps > 0
