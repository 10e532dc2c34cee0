"""A real server: connections of strangers, and what one new line costs a page."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from process_watch import eventually
from small_run import append, make_run
from viewer_site import served

from chaos.page import watch_page
from digirl_dist import Run
from digirl_dist.errors import UntrustedError
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.storage.checkpoint import Checkpoints
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
    assert len(first["figures"]["lines"]) == 1000 and first["figures"]["fresh"] and first["state"]["config"]
    append(run / "metrics.jsonl", {"iteration": 1000, "text": "y"})
    answer = viewed.news(first["figures"]["next"], first["measured"]["next"], first["state"]["stamp"])
    news = json.loads(answer)
    assert [line["text"] for line in news["figures"]["lines"]] == ["y"] and not news["figures"]["fresh"]
    assert news["state"]["config"] is None and len(answer) < 50_000
    (run / "metrics.jsonl").rename(tmp_path / "before")
    append(run / "metrics.jsonl", {"iteration": 0})
    anew = json.loads(viewed.news(news["figures"]["next"], "", ""))["figures"]
    assert anew["fresh"] and anew["lines"] == [{"iteration": 0}]


def test_the_lines_that_are_kept_for_pages_are_bounded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    for number in range(1000):
        append(run / "metrics.jsonl", {"iteration": number, "text": "x" * 900})
    viewed = ViewedRun(run)
    viewed._figures._most_bytes = 50_000
    figures = json.loads(viewed.news("", "", ""))["figures"]
    assert figures["lines"][-1]["iteration"] == 999 and len(json.dumps(figures)) < 60_000


@pytest.mark.nightly
@pytest.mark.long(60)
def test_an_episode_is_explained_within_the_memory_that_a_stranger_gets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2)
    explainer = Explainer()
    found = explainer.explain(run, "t0.0", None)
    explainer.close()
    assert (found["no_probabilities"], found["no_outcomes"]) == ("", "") and found["probabilities"]


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
