"""How a command's progress looks: on terminals of all sizes, and in files."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from process_watch import eventually

from digirl_dist.report.output import Bar, Lines, shown
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
        self.progress.begin(0, 4)
        self.status = self.progress.status
        for number in range(workers):
            self.status.workers[f"w{number}"] = WorkerStatus("waiting", 1000.0, heard_at=1000.0, slots=BUSY)

    def collect(self, landed: int, iteration: int = 0) -> None:
        self.status.round = RoundStatus(Round(iteration), landed, 10, self.now)

    def land(self, worker: str, success: bool, iteration: int = 0) -> None:
        told = {"worker": worker, **Key(iteration, 0).place(), "success": success}
        self.progress.listen("episode", told)

    def drawn(self, width: int = 200) -> str:
        """Returns the bar as it looks on a terminal of that width."""
        return [line for line in written(self.progress, width).split("\r") if line.strip()][-1].rstrip()


def written(progress: Progress, width: int = 200, *messages: str) -> str:
    """Returns all that a terminal gets."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with os.fdopen(theirs, "w") as screen:
        bar = Bar(screen)
        bar.open(progress)
        for message in messages:
            bar.line(message)
        bar.close()
    pieces = []
    with os.fdopen(ours, "rb", buffering=0) as reader, suppress(OSError):  # which is how a terminal ends
        while piece := reader.read(1 << 16):
            pieces.append(piece)
    return b"".join(pieces).decode()


def figures(iteration: int, **more: Any) -> dict[str, Any]:
    return {"iteration": iteration, "success_rate": 0.5, "reward_mean": 0.5, "collect_s": 1.0, "episodes": 10, **more}


def test_the_bar_has_what_is_done_how_much_of_it_success_who_works_and_the_time_left() -> None:
    site = Site()
    site.collect(4)
    site.status.workers["w1"].lost = True
    for success in (True, False, True, True):
        site.land("w0", success)
    site.now += 8
    bar = site.drawn()
    assert bar.startswith("0 of 4 iterations; collect iteration 0  40%|")
    assert bar.endswith("| 4/10 [00:00, success 0.75, 1 of 2 workers run episodes, 1 lost, about 1:12 min left]")
    site.status.collected(Round(0))
    site.status.host("export the run")
    assert "| 4/10" not in site.drawn() and "export the run [00:00" in site.drawn()
    site.status.part = 3, 4
    assert "export the run  75%|" in site.drawn() and "| 3/4 [" in site.drawn()
    assert site.progress.sentence().startswith("export the run: 3 of 4, for ")


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


@pytest.mark.parametrize("width", [20, 46, 80, 200])
def test_a_bar_fits_on_any_screen(width: int) -> None:
    site = Site(300)
    for landed in (None, 0, 10):
        if landed is not None:
            site.collect(landed)
        assert 0 < len(site.drawn(width)) <= width


def test_what_others_say_steers_no_terminal() -> None:
    site = Site()
    site.status.host(HOSTILE)
    site.collect(0)
    said = written(site.progress, 200, f"told {HOSTILE}")
    assert "  told a\\x1b[2J" in said and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said)


def test_a_pipe_gets_a_sign_of_life_within_seconds() -> None:
    with shown("load a large thing", file := io.StringIO()):
        eventually(lambda: "load a large thing, for" in file.getvalue())


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


def test_a_file_gets_lines_with_date_and_time_and_no_escapes() -> None:
    site, file = Site(), io.StringIO()
    site.collect(5)
    lines = Lines(file)
    lines.line(site.progress.sentence())
    lines.line(f"two\nlines {HOSTILE}", "bold red")
    first, second, third = file.getvalue().splitlines()
    assert datetime.fromisoformat(first[:19]) <= datetime.now()
    assert first[19:].startswith("  collect iteration 0: 5 of 10 episodes landed, for 0 s")
    assert first.endswith("2 of 2 workers run episodes; 0 of 4 iterations finished")
    assert second[21:] == "two" and third.startswith(" " * 21 + "lines a\\x1b") and "\x1b" not in file.getvalue()


def test_a_sign_that_the_encoding_lacks_costs_no_more_than_itself() -> None:
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding="latin-1")
    Lines(file).line("success 0.10 → 0.90 für")
    assert written.getvalue()[21:] == "success 0.10 ? 0.90 für\n".encode("latin-1")


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
    assert here in site.progress.sentence() and here in site.drawn()
    names = {"__name__": "installed", "site": site}
    exec("said = site.progress.sentence()", names)
    assert here in names["said"] and "<string>" not in names["said"], "code that a package made has no line"


def test_complete_or_said_workers_run_emulators_only_while_they_do() -> None:
    """It said "2 of 2 workers run emulators" while the host learned and all of them waited."""
    site = Site()
    site.collect(5)
    assert "2 of 2 workers run episodes" in site.progress.sentence()
    site.status.workers["w1"].slots = [{"activity": "barrier"}, {"activity": "boot"}]
    assert "1 of 2 workers run episodes, 1 idle" in site.progress.sentence()
    site.status.collected(Round(0))
    assert "0 of 2 workers run episodes" in site.progress.sentence()


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
