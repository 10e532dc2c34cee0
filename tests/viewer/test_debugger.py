"""Ten questions of somebody whose run does not do what it should, each answered within two clicks in a real Chromium.

They are asked of a run that has failed, of one whose host is at work, and of one that has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_states import LOG, REASON, failed, finished, live
from small_run import WORKERS, append, figures, landed, make_run
from viewer_site import Browser, served

from digirl_dist.report import bundle
from digirl_dist.report.bundle import write_report
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.settings import Settings
from digirl_dist.settings.hosts import worker_entries, worker_name
from digirl_dist.storage import parquet

pytestmark = [pytest.mark.component, pytest.mark.long_file(60), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    root = tmp_path_factory.mktemp("runs")
    done = finished(root / "done")
    other = make_run(root / "other", iterations=1, seed=7, train_algorithm="digirl")
    with live(root / "live", done) as at_work:
        yield [done, failed(root / "failed", done), at_work, other]


@pytest.fixture(scope="module")
def shown(chromium_is_installed: None, runs: list[Path]) -> Iterator[Browser]:
    with served(runs) as viewer:
        browser = Browser(viewer.url, 1500, 900)
        browser.says("4 runs")
        yield browser
        browser.close()


@pytest.fixture
def browser(shown: Browser) -> Iterator[Browser]:
    """A page that has just been opened: the table of runs."""
    shown.go("#/events")
    shown.go("#/runs")
    shown.says("4 runs")
    shown.clicks = 0
    yield shown
    assert shown.clicks <= 2, "clicks to the answer"


def row(browser: Browser, name: str) -> str:
    found = "[...document.querySelectorAll('.runs-table tbody tr')].find((row) => row.querySelector('a').innerText === "
    return str(browser.wait(f"{found}arguments[0])?.innerText", name))


@pytest.mark.nightly
def test_is_it_alive(browser: Browser) -> None:
    assert "running" in row(browser, "live") and "collect iteration 5: 2 of 6 episodes landed" in row(browser, "live")
    assert "about" in row(browser, "live") and "left" in row(browser, "live")
    assert "finished" in row(browser, "done") and "failed" in row(browser, "failed")
    states = "[...document.querySelectorAll('.runs-table tbody .badge')].map((each) => each.innerText)"
    assert "failed" in browser.page.run(f"return {states}")[0], "what needs somebody comes first"
    browser.click("tbody th a", "live")
    browser.says("1 of 2 workers run episodes", ".state")
    browser.says(f"{WORKERS[1]} lost for", ".state")
    browser.says("1 of 2 slots are slow: reset for 48 s of at most 60 s", ".state")


def test_why_did_it_fail(browser: Browser) -> None:
    browser.click("tbody th a", "failed")
    browser.says(REASON, ".state")
    browser.says("run failed", ".events")
    browser.says("episode retried (5 times)", ".events")


def test_which_worker_loses_time(browser: Browser) -> None:
    browser.click("nav a", "Workers")
    browser.says(f"{WORKERS[1]} loses the largest share")
    browser.choose("#run", "live")
    browser.says("lost, to be tried again, for", ".workers-now")
    assert "reset" in browser.text(".slot.is-late")


def test_which_task_got_worse(browser: Browser, runs: list[Path]) -> None:
    browser.click("nav a", "Tasks")
    browser.says("play a song", ".tasks")
    names = browser.page.run("return [...document.querySelectorAll('.tasks tbody th')].map((each) => each.innerText)")
    assert names[0] == "open the notes", "the worst comes first"
    browser.click(".tasks button", "change")
    browser.wait("document.querySelector('.tasks [aria-sort=ascending]')?.innerText.startsWith('change') || false")


def test_what_did_the_policy_see(browser: Browser) -> None:
    browser.click("nav a", "Episodes")
    browser.click(".item a")
    browser.wait(
        "[...document.querySelectorAll('.stage img.shot')].filter((each) => each.naturalWidth === 108).length === 2"
    )
    browser.says("after it", ".stage")
    browser.wait("document.querySelectorAll('.of-steps .chart').length >= 2")


@pytest.mark.nightly
def test_why_was_this_step_not_learned(browser: Browser) -> None:
    browser.go("#/episodes?run=done&outcome=failure")
    browser.click(".item a")
    browser.wait("document.querySelector('#verdict') !== null")
    assert "left out" in browser.text("#verdict")


def test_what_changed_between_two_runs(browser: Browser) -> None:
    browser.says('"digirl"', "#differences")
    keys = browser.page.run(
        "return [...document.querySelectorAll('#differences tbody th')].map((each) => each.innerText)"
    )
    assert keys == ["seed", "train_algorithm", "train_iterations"], (
        "what somebody set, and nothing that follows from it"
    )


@pytest.mark.nightly
def test_is_it_still_learning(browser: Browser) -> None:
    browser.click("tbody th a", "live")
    browser.wait("[...document.querySelectorAll('.chart b')].some((each) => each.innerText === 'actor loss')")
    assert "success rate" in browser.text() and "of 20" in browser.text(".tiles")
    browser.choose("#axis", "hours")
    browser.wait("document.querySelector('.chart:not(.waits) svg')?.textContent.includes('hours') ?? false")


def test_what_does_that_slots_log_say(browser: Browser) -> None:
    browser.go("#/workers?run=live")
    browser.click(".slot.is-late")
    browser.says(LOG.splitlines()[-1], ".log")
    browser.go(f"#/events?run=done&worker={WORKERS[0]}&slot=1")
    browser.says("went with them", ".log")


def test_the_line_that_reads_a_log_leads_to_the_worker(chromium_is_installed: None, runs: list[Path]) -> None:
    """As ``settings/hosts.py`` reads the entries."""
    entries = [
        "ann@10.0.0.2:2222",
        "ann@10.0.0.3",
        {"host": "gate:2203", "site": "lab"},
        "[fe80::2]:22",
        "fe80::1",
        "slurm:2",
    ]
    reached = {
        "10.0.0.2-2222": "ssh -p 2222 ann@10.0.0.2 ",
        "10.0.0.3": "ssh ann@10.0.0.3 ",
        "gate-2203": "ssh -p 2203 gate ",
        "fe80--2-22": "ssh -p 22 fe80::2 ",
        "fe80--1": "ssh fe80::1 ",
        "slurm-1": None,
    }
    assert [worker_name(entry) for entry in worker_entries(Settings(worker_ips=entries))] == [
        *[*reached][:-1],
        "slurm-0",
        "slurm-1",
    ]
    asked = (
        "import('./static/events.js').then(({ logLine }) => (window.told = arguments[1].map((worker) => "
        "logLine({ id: 'r', config: { worker_ips: arguments[0] } }, worker, '')?.split('\\'')[0] ?? null)))"
    )
    with served(runs) as viewer:
        browser = Browser(viewer.url)
        browser.page.run(asked, entries, [*reached])
        assert browser.wait("window.told") == [*reached.values()]
        browser.close()


def test_how_do_i_run_this_again(browser: Browser, runs: list[Path]) -> None:
    browser.go("#/episode/done/t3.0")
    browser.click("summary", "Lines to copy")
    browser.page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    text = browser.text(".copyable + .copyable pre")
    for part in ('run.episode("t3.0")', "Fleet.inline", "run.policy(3)", "seed=episode.ticket.seed"):
        assert part in text
    browser.go("#/run/failed")
    browser.says("Lines to copy")
    browser.page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert f"--config-path {runs[1]} --config-name config" in browser.text()


def test_keys_work_on_arrival_without_a_click(shown: Browser) -> None:
    shown.go("#/runs")
    shown.says("4 runs")
    shown.press("ArrowDown")
    assert shown.page.run("return document.activeElement.innerText") == "failed"
    shown.press("2")
    shown.wait("location.hash.startsWith('#/episodes')")
    shown.wait("document.querySelectorAll('.item').length > 3")
    shown.press("ArrowDown")
    shown.press("ArrowDown")
    assert shown.page.run("return document.activeElement.dataset.row") == shown.page.run(
        "return document.querySelectorAll('.item a')[1].dataset.row"
    )
    shown.press("5")
    shown.says("Events and logs")


def test_a_run_that_goes_on_shows_what_it_does_now(chromium_is_installed: None, tmp_path: Path) -> None:
    done = finished(tmp_path / "done")
    with live(tmp_path / "live", done) as at_work, served([at_work]) as viewer:
        browser = Browser(viewer.url)
        browser.says("2 of 6 episodes landed", ".state")
        status = (at_work / "status.json").read_text()
        (at_work / "status.json").write_text(status.replace("2 of 6", "5 of 6"))
        browser.says("5 of 6 episodes landed", ".state")
        append(at_work / "events.jsonl", {"time": 1.9e9, "event": "disk_full", "reason": "no space left on /data"})
        append(at_work / "metrics.jsonl", {"iteration": 5, "success_rate": 0.5, "reward_mean": 0.5, "episodes": 6})
        browser.says("no space left on /data", ".events")
        browser.says("6 of 20", ".tiles")
        browser.close()


def test_a_run_whose_environment_tells_no_success_has_no_failures(chromium_is_installed: None, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("name: phone", "name: gymnasium", 1))
    (folder / "metrics.jsonl").write_text(
        '{"iteration": 0, "success_rate": null, "reward_mean": -200.0, "episodes": 6}\n'
    )
    for one in parquet.read(folder / "trajectories" / "000000.parquet"):
        append(folder / "events.jsonl", landed(one, 1.8e9))
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.says("best mean reward")
        for address in ("#/episodes", "#/episode/run/t0.0", "#/tasks"):
            browser.go(address)
            browser.wait("document.querySelector('.item, .panel, .tasks a') !== null")
            assert "failure" not in browser.text(".list, .split, .tasks") and "✗" not in browser.text(), address
        browser.close()


def test_a_report_of_a_failed_run_says_so_first(chromium_is_installed: None, runs: list[Path]) -> None:
    browser = Browser(write_report(ViewedRun(runs[1])).as_uri())
    browser.says(REASON, ".state")
    browser.says("run failed", ".events")
    browser.close()


def test_a_report_of_a_long_run_says_on_every_page_what_it_leaves_out(
    chromium_is_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run", iterations=1, train_iterations=20)
    for number in range(1, 20):
        append(
            folder / "metrics.jsonl", {**figures(number, parquet.read(folder / "trajectories/000000.parquet"), 1.8e9)}
        )
        append(folder / "events.jsonl", {"time": 1.8e9, "event": "disk_full", "reason": "x" * 200})
    monkeypatch.setattr(bundle, "_NEWEST_ROWS", 4)
    browser = Browser(write_report(ViewedRun(folder, most_bytes=4000)).as_uri())
    browser.says("Of metrics.jsonl, which is long, this page has the newest", ".state")
    browser.says("20", ".tiles dd")
    for page, words in {
        "tasks": "Of 6 episodes",
        "episodes": "Of 6 episodes",
        "workers": "Of metrics.jsonl",
        "events": "Of events.jsonl",
    }.items():
        browser.go(f"#/{page}")
        browser.says(words)
    browser.close()
