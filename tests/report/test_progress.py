"""How a command's progress looks: on terminals of all sizes, and in files."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from digirl_dist.report.frame import frame
from digirl_dist.report.output import Lines
from digirl_dist.report.progress import Progress, duration
from digirl_dist.storage.status import RoundStatus, Status, WorkerStatus
from digirl_dist.tasks import Key, Round

BUSY = [{"activity": "step", "for_s": 0.1, "limit_s": 60.0, "ticket": 3}, {"activity": "policy"}]
HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\x9b31m\r\u202e[bold]"


class Kept:
    """Implements ``Output`` in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def check(self) -> None:
        """It is always read."""


class Site:
    """A run of 4 iterations with 10 episodes each, on a clock that the test moves."""

    def __init__(self, workers: int = 2) -> None:
        self.now = 1000.0
        self.kept = Kept()
        self.progress = Progress(Status(doing=None, since=1000.0), self.kept, lambda: self.now)
        self.progress.name = "runs/demo"
        self.progress.begin(0, 4)
        self.status = self.progress.status
        for number in range(workers):
            self.status.workers[f"w{number}"] = WorkerStatus("waiting", 1000.0, heard_at=1000.0, slots=BUSY)

    def collect(self, landed: int, iteration: int = 0) -> None:
        self.status.round = RoundStatus(Round(iteration), landed, 10, self.now)

    def land(self, worker: str, success: bool, iteration: int = 0) -> None:
        told = {"worker": worker, **Key(iteration, 0).place(), "success": success}
        self.progress.listen("episode", told)

    def shown(self, width: int = 100, height: int = 20) -> list[str]:
        """Returns the frame as it looks; nothing is wider or higher than was asked for."""
        console = Console(file=io.StringIO(), width=width, height=height, record=True, force_terminal=True)
        console.print(frame(self.progress, width, height))
        rows = console.export_text().splitlines()
        assert len(rows) <= height and all(len(row) <= width for row in rows), rows
        return [row.rstrip() for row in rows]


def figures(iteration: int, **more: Any) -> dict[str, Any]:
    return {"iteration": iteration, "success_rate": 0.5, "reward_mean": 0.5, "collect_s": 1.0, "episodes": 10, **more}


def test_the_host_the_time_left_and_a_worker_in_trouble_have_a_line() -> None:
    site = Site()
    site.collect(4)
    site.status.workers["w1"].last_trouble, site.status.workers["w1"].troubled_at = "slot: Chromium crashed", 990.0
    for success in (True, False, True, True):
        site.land("w0", success)
    site.now += 8
    rows = site.shown()
    assert rows[0].startswith("runs/demo  0 of 4 iterations ─") and rows[0].endswith("8 s · about 1:12 min left")
    assert rows[1] == "host  collect iteration 0  8 s" and rows[2].endswith("4/10 episodes · success 0.75")
    assert rows[4] == "workers  2 runs episodes"
    assert rows[5:] == ["  w1  runs episodes  8 s  18 s ago: slot: Chromium crashed"]


def test_the_success_on_the_way_is_that_of_whoever_judges() -> None:
    site = Site()
    site.progress.verdict = "judged"
    site.collect(2)
    site.land("w0", False)
    assert site.progress.success_rate is None, "the emulator's own verdict does not count"
    for success in (True, False, True):
        site.progress.listen("judged", {"iteration": 0, "ticket": 0, "purpose": "train", "success": success})
    assert site.progress.success_rate == pytest.approx(2 / 3)
    site.collect(0, iteration=1)
    site.land("w0", False, iteration=1)
    assert site.progress.success_rate is None


def test_there_is_no_success_on_the_way_where_it_means_nothing() -> None:
    site = Site()
    site.progress.tells_success = False
    site.collect(2)
    site.land("w0", True)
    assert site.progress.success_rate is None and "success" not in site.progress.sentence()
    site.land("w0", False)
    assert site.progress.success_rate == 0.5


def test_the_time_left_follows_the_last_iterations() -> None:
    site = Site()
    assert site.progress.left_s() is None, "nothing is known yet"
    for iteration, seconds in enumerate((90.0, 10.0, 12.0)):
        site.now += seconds
        site.progress.iteration(figures(iteration))
    assert site.progress.left_s() == 12.0
    site.now += 5
    assert site.progress.left_s() == 7.0
    site.now += 50
    assert site.progress.left_s() is None, "it takes longer than usual"
    site.progress.iteration(figures(3))
    assert site.progress.left_s() is None, "what follows the last iteration takes a while as well"
    assert site.kept.lines[0] == "iteration   0  success 0.50  reward 0.50  collect 1.00 s"


def test_the_summary_claims_no_more_than_this_process_did() -> None:
    made = [{"episodes": 10, "success_rate": rate, "reward_mean": rate} for rate in (0.1, 0.5, 0.9)]
    told = "3 iterations, 30 episodes, success 0.10 → 0.90, reward 0.10 → 0.90"
    for first, now in ((0, ", in 1:05 min"), (2, ", 1 of them now, in 1:05 min"), (3, "")):
        site = Site()
        site.progress.begin(first, 3)
        for iteration in range(first, 3):
            site.progress.iteration(figures(iteration))
        site.now += 65
        site.progress.summary(made)
        assert site.kept.lines[-1] == told + now
    measuring = Progress(Status(), kept := Kept())
    measuring.summary(made)
    assert kept.lines == [], "it trained nothing"


def test_who_is_on_the_way_says_since_when() -> None:
    site = Site()
    site.status.host("prepare the workers")
    site.status.since = 995.0
    site.status.workers = {"w0": WorkerStatus("install or check the package", 940.0, limit_s=1800.0)}
    assert site.shown()[1] == "host  prepare the workers  5 s"
    assert site.shown()[-1] == "  w0  install or check the package  1:00 min"


@pytest.mark.parametrize("height", [1, 2, 5, 8, 16, 24])
@pytest.mark.parametrize("width", [8, 20, 46, 80, 200])
def test_many_workers_fit_on_any_screen_the_worst_first(width: int, height: int) -> None:
    site = Site(300)
    site.collect(0)
    site.status.workers["w299"] = WorkerStatus("lost, to be tried again", lost=True, last_trouble="x" * 300)
    rows = site.shown(width, height)
    if width >= 80 and height >= 16:
        assert rows[4] == "workers  299 runs episodes, 1 lost, to be tried again" and rows[5].split()[0] == "w299"


def test_what_workers_say_steers_neither_terminal_nor_markup() -> None:
    site = Site()
    site.collect(0)
    site.status.workers = {
        HOSTILE: WorkerStatus(HOSTILE, lost=True, last_trouble=HOSTILE, troubled_at=1000.0),
        "w1": WorkerStatus("waiting", heard_at=1000.0, slots=[{"activity": HOSTILE}]),
    }
    console = Console(file=(file := io.StringIO()), width=200, color_system=None, force_terminal=False)
    console.print(frame(site.progress, 200, 20))
    assert not any(ord(character) < 32 and character != "\n" for character in file.getvalue())
    assert "\u202e" not in file.getvalue() and "\\x1b[2J" in file.getvalue() and "[bold]" in file.getvalue()


def test_a_reason_is_told_once_and_then_counted() -> None:
    site = Site()
    for number in range(40):
        lost = {"worker": f"w{number}", "reason": f"nothing listens at 10.0.0.{number}:22", "remedy": "start sshd"}
        site.progress.listen("worker_lost", lost)
    site.progress.look()
    assert site.kept.lines == ["worker w0 lost: nothing listens at 10.0.0.0:22 -> start sshd"]
    site.now += 30
    site.progress.look()
    site.progress.look()
    assert site.kept.lines[1:] == ["39 more like this: worker lost: nothing listens at 10.0.0.0:22"]
    site.progress.listen("worker_lost", {"worker": "w7", "reason": "host key changed", "remedy": ""})
    assert site.kept.lines[2] == "worker w7 lost: host key changed"


def test_reasons_without_end_are_counted_together() -> None:
    site = Site()
    for number in range(1000):
        reason = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        site.progress.listen("worker_lost", {"worker": "w0", "reason": reason, "remedy": ""})
    site.progress.close()
    assert len(site.kept.lines) == 201 and "other reasons, which events.jsonl has" in site.kept.lines[-1]


def test_a_file_gets_lines_with_the_time_of_day_and_no_escapes() -> None:
    site, file = Site(), io.StringIO()
    site.collect(5)
    lines = Lines(file)
    lines.line(site.progress.sentence())
    lines.line(f"two\nlines {HOSTILE}", "bold red")
    first, second, third = file.getvalue().splitlines()
    assert first[2] == first[5] == ":" and first[10:].startswith(
        "collect iteration 0: 5 of 10 episodes landed, for 0 s"
    )
    assert first.endswith("2 of 2 workers run emulators")
    assert second[10:] == "two" and third.startswith(" " * 10 + "lines a\\x1b") and "\x1b" not in file.getvalue()


def test_a_sign_that_the_encoding_lacks_costs_no_more_than_itself() -> None:
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding="latin-1")
    Lines(file).line("success 0.10 → 0.90 für")
    assert written.getvalue()[10:] == "success 0.10 ? 0.90 für\n".encode("latin-1")


def test_a_reader_that_is_gone_ends_the_run_at_the_next_iteration_and_no_thread() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(Status(), Lines(Gone()))
    progress.say("from any thread")
    with pytest.raises(BrokenPipeError):
        progress.iteration(figures(0))


def test_durations() -> None:
    assert [duration(each) for each in (0.4, 59.9, 125, 11220)] == ["0 s", "59 s", "2:05 min", "3:07 h"]


def test_an_engine_is_told_of_with_figures_where_its_log_probabilities_are_others() -> None:
    site = Site()
    for largest in (0.0009, 0.0123):
        told = {"answers": 4, "tokens": 40, "mean": 0.002, "largest": largest, "without": 0.5, "prompts": ""}
        site.progress.listen("engine_checked", told)
    (line,) = site.kept.lines
    assert "differ from agent.model's by up to 0.012 in 4 answers, 0.002 per token" in line


def test_a_long_wait_names_the_line_of_the_users_code_that_it_is_in() -> None:
    site = Site(workers=0)
    site.now += 9.0
    assert "test_progress.py" not in site.progress.sentence()
    site.now += 2.0
    here = "test_progress.py:"
    assert here in site.progress.sentence() and any(here in row for row in site.shown(width=300))
    names = {"__name__": "installed", "site": site}
    exec("said = site.progress.sentence()", names)
    assert here in names["said"] and "<string>" not in names["said"], "code that a package made has no line"


def test_complete_or_said_workers_run_emulators_only_while_they_do() -> None:
    """It said "2 of 2 workers run emulators" while the host learned and all of them waited."""
    site = Site()
    site.collect(5)
    assert "2 of 2 workers run emulators" in site.progress.sentence()
    site.status.workers["w1"].slots = [{"activity": "barrier"}, {"activity": "boot"}]
    assert "1 of 2 workers run emulators" in site.progress.sentence()
    site.status.collected(Round(0))
    assert "0 of 2 workers run emulators" in site.progress.sentence()


def test_complete_or_said_no_time_is_left_only_if_none_is() -> None:
    """It said "about 0 s left" while the only iteration learned, and while the last checkpoint was measured."""
    site = Site()
    site.collect(10)
    site.now += 8
    site.progress.iterations = 1
    assert "left" not in site.progress.sentence(), "all episodes landed, and the update comes"
    site.status.collected(Round(0))
    site.now += 15
    assert "left" not in site.progress.sentence()
    site.progress.iteration(figures(0))
    site.now += 5
    assert "left" not in site.progress.sentence(), "the last evaluation, the workers' end and the report"
