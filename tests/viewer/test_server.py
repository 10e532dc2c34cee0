"""A real server: connections of strangers, and what one new line costs a page."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from process_watch import eventually
from small_run import append, episode, make_run
from viewer_site import served

from chaos.page import watch_page
from digirl_dist import Run
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import told
from digirl_dist.errors import UntrustedError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.report import followed
from digirl_dist.report.viewed import ViewedRun, named
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.trajectory import Observation
from digirl_dist.viewer.explainer import Explainer

pytestmark = pytest.mark.component

_STRANGERS = 300
_LIMIT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


def test_half_sent_requests_of_strangers_are_closed_and_keep_nobody_out(folder: Path) -> None:
    """Class 1: 1,100 of them made it deaf for good."""
    with served([folder]) as viewer, ExitStack() as stack:
        for _ in range(_STRANGERS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", viewer.port), _LIMIT_S))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        with urllib.request.urlopen(f"{viewer.url}api/runs", timeout=_LIMIT_S) as answer:
            assert json.load(answer) == ["demo"]
        assert stranger.recv(1) == b""
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{viewer.port}/", timeout=_LIMIT_S)


def test_the_page_that_soaks_open_follows_a_run(folder: Path) -> None:
    with served([folder]) as viewer, watch_page(viewer.url) as page:
        eventually(lambda: page.answers >= 4 or page.error)  # the runs, and each kind of news of one
        append(folder / "metrics.jsonl", {"iteration": 7})
        eventually(lambda: page.answers >= 6 or page.error)
    assert page.error is None and page.answers >= 6


def test_one_new_line_costs_a_page_that_line_alone(tmp_path: Path) -> None:
    """Class 1: with 20 runs of 1,000 lines it was 19.5 MB."""
    run = make_run(tmp_path / "run", iterations=1)
    for number in range(1, 1000):
        append(run / "metrics.jsonl", {"iteration": number, "text": "x" * 900})
    viewed = ViewedRun(run)
    first = json.loads(viewed.news("", "", ""))
    assert len(first["figures"]["lines"]) == 1000 and first["figures"]["fresh"] and first["state"]["settings"]
    append(run / "metrics.jsonl", {"iteration": 1000, "text": "y"})
    answer = viewed.news(first["figures"]["next"], first["measured"]["next"], first["state"]["stamp"])
    news = json.loads(answer)
    assert [line["text"] for line in news["figures"]["lines"]] == ["y"] and not news["figures"]["fresh"]
    assert news["state"]["settings"] is None and len(answer) < 50_000
    (run / "metrics.jsonl").rename(tmp_path / "before")
    append(run / "metrics.jsonl", {"iteration": 0})
    anew = json.loads(viewed.news(news["figures"]["next"], "", ""))["figures"]
    assert anew["fresh"] and anew["lines"] == [{"iteration": 0}]


def test_a_new_line_of_one_of_twenty_runs_costs_a_page_less_than_fifty_kilobytes(tmp_path: Path) -> None:
    """What it is told of all runs, and what it then asks for about this one."""
    run = make_run(tmp_path / "run", iterations=1)
    spent = dict.fromkeys(("step", "policy", "reset", "boot", "push", "update", "barrier"), 12.5)
    line = {"slot_seconds_by_worker": {f"10.0.0.{k}": spent for k in range(40)}, "slot_seconds": spent, "loss": 0.5}
    for number in range(1, 1000):
        append(run / "metrics.jsonl", {"iteration": number, "time": 1.8e9 + number, "iteration_s": 30.0, **line})
    runs = named([run] * 20)
    (viewed, *_) = runs.values()
    viewed.follow(everything=True)
    first, before = json.loads(viewed.news("", "", "")), json.loads(viewed.timeline_news("", ""))
    append(run / "metrics.jsonl", {"iteration": 1000, "time": 1.8e9 + 1000, "iteration_s": 30.0, **line})
    live = json.dumps([each.progress() for each in runs.values()])
    news = viewed.news(first["figures"]["next"], first["measured"]["next"], first["state"]["stamp"])
    timeline = viewed.timeline_news(before["iterations"]["next"], before["events"]["next"])
    rows, status = json.dumps(viewed.rows(len(viewed.index))), json.dumps(viewed.status())
    assert len(json.loads(news)["figures"]["lines"]) == len(json.loads(timeline)["iterations"]["lines"]) == 1
    assert sum(map(len, (live, news, timeline, rows, status))) < 50_000


def test_the_lines_that_are_kept_for_pages_are_bounded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    for number in range(1000):
        append(run / "metrics.jsonl", {"iteration": number, "text": "x" * 900})
    viewed = ViewedRun(run)
    viewed._figures._most_bytes = 50_000
    figures = json.loads(viewed.news("", "", ""))["figures"]
    assert figures["lines"][-1]["iteration"] == 999 and len(json.dumps(figures)) < 60_000 and figures["cut"]


def test_a_page_has_the_figures_of_all_iterations_however_many_workers_or_says_that_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    (run / "events.jsonl").unlink()
    spent = dict.fromkeys(("step", "policy", "reset", "boot", "push", "update", "barrier"), 12.5)
    of_all = {"slot_seconds_by_worker": {f"10.0.0.{k}": spent for k in range(100)}}
    for number in range(1, 100):
        append(run / "metrics.jsonl", {"iteration": number, "episodes": 8, **of_all})
        append(run / "events.jsonl", {"event": "episode", "reason": "x" * 5000})
    append(run / "metrics.jsonl", {"iteration": 100})

    def lines() -> list[tuple[int, bool]]:
        viewed = ViewedRun(run, most_bytes=1 << 18)
        parts = [json.loads(viewed.news("", "", ""))["figures"], *json.loads(viewed.timeline_news("", "")).values()]
        return [(len(part["lines"]), part["cut"]) for part in parts]

    figures, iterations, events = lines()
    assert figures == (101, False) and events == (0, False) and iterations[0] < 99 and iterations[1]
    monkeypatch.setattr(followed, "_MOST_READ", 1 << 18)
    figures, _, events = lines()
    assert 1 < figures[0] < 20 and figures[1] and events == (0, True)


@pytest.mark.nightly
@pytest.mark.long(60)
def test_an_episode_is_explained_within_the_memory_that_a_stranger_gets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2)
    explainer = Explainer()
    found = explainer.explain(run, "t0.0", None)
    explainer.close()
    assert (found["no_probabilities"], found["no_outcomes"]) == ("", "") and found["probabilities"]


def test_only_logs_in_the_run_folder_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    (run / "run.json").write_text('{"run_id": "r"}')
    viewed = ViewedRun(run)
    job = JobFolder(run / "dry_run/jobs/r-localhost-0")
    job.root.mkdir(parents=True)
    job.slot_log(0).write_text("x" * 100_000 + "the end")
    assert json.loads(viewed.log("localhost-0", 0)).endswith("the end") and len(viewed.log("localhost-0", 0)) < 70_000
    (tmp_path / "secret.log").write_text("secret")
    job.slot_log(1).symlink_to(tmp_path / "secret.log")
    os.mkfifo(job.slot_log(2))
    (run / "dry_run/jobs/r-linked").symlink_to(tmp_path)
    (tmp_path / "slot-0.log").write_text("secret")
    for worker, slot in (
        ("localhost-0", 1),
        ("localhost-0", 2),
        ("linked", 0),
        ("../../../..", 0),
        ("\0", 0),
        ("x", 9),
    ):
        assert viewed.log(worker, slot) == '""', (worker, slot)


def test_what_a_step_touched_is_named_where_the_observation_names_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    one = episode(1, 0, True, steps=2)
    labels = [Label("page", "", 0, 0, 1, 1), Label("OK", "button", 0.2, 0.2, 0.3, 0.3)]
    deep = Observation("touch\nOn screen: " + "[" * 100_000)
    steps = [replace(one.steps[0], observation=Observation(told("touch OK", (), labels))), one.steps[1]]
    parquet.write(run / "trajectories" / "000001.parquet", [replace(one, steps=steps, final_observation=deep)])
    viewed = ViewedRun(run)
    viewed.follow(everything=True)
    assert [step["touched"] for step in viewed.episode("t1.0")["steps"]] == ["button “OK”", ""]


def test_what_somebody_set_is_told_from_what_follows_from_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1, train_algorithm="digirl", seed=3)
    given = json.loads(ViewedRun(run).news("", "", ""))["state"]["settings"]["given"]
    assert {"seed", "train_algorithm", "agent.width"} <= set(given) and len(given) < 12, given


@pytest.mark.long(60)
def test_opening_an_episode_calls_nothing_that_a_checkpoint_names(tmp_path: Path) -> None:
    """Class 4: the page asks for the explanation by itself, and the agent was built from the manifest."""
    run = make_run(tmp_path / "run", iterations=1)
    manifest = Checkpoints(run / "checkpoints").open(0).folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["policy"]["agent"] = {"name": "custom", "entry_point": "os:mkdir", "kwargs": {"mode": 0o700}}
    manifest.write_text(json.dumps(content))
    explainer = Explainer()
    found = explainer.explain(run, "t0.0", None)
    explainer.close()
    assert "agent.entry_point='os:mkdir'" in found["no_probabilities"] and "--trust" in found["no_probabilities"]
    with pytest.raises(UntrustedError, match="trust=True"):
        Run(run).policy(0)
