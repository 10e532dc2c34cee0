"""Forecasts of fleets: held against what the benchmarks measured, and against each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from digirl_dist.cli.main import main
from digirl_dist.errors import RunFolderError, SettingsError, TrajectoryError
from digirl_dist.plan.figures import Figures, of_rehearsal, of_run, stated
from digirl_dist.plan.forecast import FleetPlan, forecast
from digirl_dist.settings import RehearsalSettings

DEVICE = RehearsalSettings(reset_s=0.5, reset_sigma=0.4, step_s=0.15, step_sigma=0.5, steps=10, steps_sigma=0.5)
BENCH = replace(of_rehearsal(DEVICE), policy_s=0.003, update_s=0.05, push_mb=0.01, episode_mb=0.02)
"""The device of ``script/bench scaling``, with a linear policy."""
EPISODE_S = BENCH.reset_s + BENCH.steps * (BENCH.step_s + BENCH.policy_s)
FIGURES = Figures(reset_s=2.0, step_s=1.0, steps=10.0)


@pytest.mark.parametrize(
    ("plan", "measured"), [(FleetPlan(1, 4, 32), (3.669, 3.611)), (FleetPlan(8, 4, 256), (24.07, 27.85))]
)
def test_weak_scaling_is_forecast_within_a_tenth_of_what_was_measured(
    plan: FleetPlan, measured: tuple[float, float]
) -> None:
    """Seconds of episodes per second in both pairs of ``script/bench scaling``, 2026-11-22, two busy cores."""
    rate = forecast(BENCH, plan, 8).episodes_per_hour / 3600 * EPISODE_S
    assert rate == pytest.approx(sum(measured) / len(measured), rel=0.1)


@pytest.mark.parametrize("workers", [1, 16, 1000, 10_000])
def test_shares_are_shares_and_the_hosts_own_limits_bound_a_large_fleet(workers: int) -> None:
    found = forecast(FIGURES, FleetPlan(workers, 2, 128))
    assert 0 <= found.busy <= 1 and sum(found.shares.values()) == pytest.approx(1.0)
    assert found.episodes_per_hour <= 3600 / FIGURES.host_episode_s


def test_failing_emulators_cost_what_their_lost_episodes_took() -> None:
    plan, failing = FleetPlan(4, 2, 64), replace(FIGURES, fail_rate=0.2)
    assert forecast(failing, plan).episodes_per_hour < 0.9 * forecast(FIGURES, plan).episodes_per_hour


def test_figures_of_a_run_are_read_from_its_files_without_its_first_iteration(tmp_path: Path) -> None:
    def line(number: int, reset_s: float) -> str:
        seconds = {"reset": reset_s, "step": 80.0, "policy": 4.0, "barrier": 9.0}
        more = {"collect_s": 10.0, "iteration_s": 13.0, "episodes_retried": 2, "pull_bytes": 4_000_000}
        return json.dumps({"iteration": number, "episodes": 8, "steps_mean": 5.0, "slot_seconds": seconds, **more})

    (tmp_path / "config.yaml").touch()
    (tmp_path / "metrics.jsonl").write_text("\n".join([line(0, 500.0), line(1, 16.0), line(2, 16.0), '{"half']))
    pushed = {"event": "pushed", "bytes": 8_000_000, "seconds": 2.0}
    (tmp_path / "events.jsonl").write_text(json.dumps(pushed) + "\n" + json.dumps({**pushed, "bytes": 9}) + "\n")
    found = of_run(tmp_path)
    assert (found.reset_s, found.step_s, found.policy_s, found.steps) == (2.0, 2.0, 0.1, 5.0)
    assert (found.update_s, found.fail_rate, found.episode_mb) == (3.0, 0.2, 0.5)
    assert (found.push_mb, found.link_mb_s) == (8.0, 4.0)
    with pytest.raises(RunFolderError, match="elsewhere is no run folder"):
        of_run(tmp_path / "elsewhere")
    numbers = ('"slot_seconds": {"step": 80.0, "reset": -1.0}', '"episodes_retried": -1', '"pull_bytes": 1e300')
    for wrong in (
        '"slot_seconds": 3',
        '"slot_seconds": {"step": "x"}',
        '"pull_bytes": NaN',
        '"steps_mean": [1]',
        *numbers,
    ):
        (tmp_path / "metrics.jsonl").write_text(line(0, 16.0)[:-1] + f", {wrong}}}\n")
        with pytest.raises(RunFolderError, match="is damaged"):
            of_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(line(0, 16.0) + "\n")
    (tmp_path / "events.jsonl").write_text(2 * (json.dumps({**pushed, "seconds": 1e308}) + "\n"))
    with pytest.raises(RunFolderError, match="link_mb_s is out of range"):
        of_run(tmp_path)
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(TrajectoryError, match="is not a trajectory file"):
        of_run(tmp_path)


def test_an_update_that_overlaps_with_the_next_collection_takes_what_it_took(tmp_path: Path) -> None:
    """``ahead=1``: a collection of 20 s begins before the update of 58 s, and an iteration takes 60 s."""
    seconds = {"reset": 16.0, "step": 80.0, "policy": 4.0}
    line = {"episodes": 8, "steps_mean": 5.0, "slot_seconds": seconds, "update_s": 58.0, "iteration_s": 60.0}
    (tmp_path / "config.yaml").touch()
    for collect_s in (20.0, 59.0, 75.0):
        (tmp_path / "metrics.jsonl").write_text(json.dumps({**line, "iteration": 0, "collect_s": collect_s}) + "\n")
        assert of_run(tmp_path).update_s == 58.0


def test_a_rehearsal_whose_rates_add_up_to_more_than_one_fails_always() -> None:
    assert of_rehearsal(RehearsalSettings(hang_rate=0.6, crash_rate=0.6, steps=12.5)).fail_rate == 1.0


@pytest.mark.parametrize(
    "word",
    [
        *("step=1", "step_s=-1", "step_s=nan", "step_s=", "link_mb_s=0", "host_mb_s=1e-9", "steps=inf"),
        *("fail_rate=1", "steps_spread=1000", "reset_spread=10"),
    ],
)
def test_a_figure_that_is_none_is_named(word: str) -> None:
    with pytest.raises(SettingsError, match=word.split("=")[0]):
        stated([word], FIGURES)


def test_episodes_that_take_no_time_are_no_plan() -> None:
    with pytest.raises(SettingsError, match="takes no time by these figures: set reset_s, step_s or policy_s above 0"):
        stated(["reset_s=0", "step_s=0", "steps=1", "policy_s=0"])


@pytest.mark.component
def test_a_plan_names_what_is_missing_and_prints_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    figures = ["--figure", "reset_s=2", "--figure", "step_s=1"]
    assert main(["plan", "--fleet", "1,8", *figures]) == 2
    assert "steps" in capsys.readouterr().err
    assert main(["plan", "--fleet", "1,8", *figures, "--figure", "steps=10"]) == 0
    assert "ahead=1" in capsys.readouterr().out
    mine = ["plan", "--fleet", "3,8", "worker_ips=[a,b,c]", "bsize=4", "rollout_size=12", "emulator=rehearsal"]
    assert main(mine) == 0
    shown = capsys.readouterr().out.split("\n")
    assert [line.split()[0] for line in shown if line.endswith("<- this fleet")] == ["3"]
    assert "link_mb_s 10 (default), host_mb_s 100 (default)" in shown[0], "no run has measured these"
    assert shown[-2].startswith("recommended for 3 workers of 4 slots: ")
    for fleet, workers, slots in (
        (["worker_ips=[a,{host: b, bsize: 64}]"], 2, 66),
        (["collector=ray", "collector.workers=8"], 8, 16),
    ):
        assert main(["plan", "--fleet", "2,8", "emulator=rehearsal", "bsize=2", "rollout_size=16", *fleet]) == 0
        shown = capsys.readouterr().out.split("\n")
        assert [line.split()[:2] for line in shown if line.endswith("<- this fleet")] == [[str(workers), str(slots)]]
    assert main(["plan", "--fleet", "2", "--json", "emulator=rehearsal", "rollout_size=16"]) == 0
    assert json.loads(capsys.readouterr().out)["forecasts"][0]["rollout_size"] == 16
    assert main(["plan", "--fleet", "many", "emulator=rehearsal"]) == 2
