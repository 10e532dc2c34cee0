"""A real run on a terminal and through a pipe: never silent, and clean at its end."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from digirl_dist.child_process import environment

pytestmark = [pytest.mark.system, pytest.mark.long_file(40)]

SMALL = ["train_iterations=2", "rollout_size=4", "bsize=2", "max_steps=3", "parallel=single", "agent.width=8"]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "digirl_dist", "run", *SMALL, f"save_path={folder / 'run'}", *words]


class Terminal:
    """A process with a terminal of its own, and all that it writes there with the times."""

    def __init__(self, words: list[str]) -> None:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._fd = ours
        self.started_at = time.monotonic()
        variables = {**environment(), "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        self.text = ""

    def pieces(self) -> Iterator[tuple[float, str]]:
        """Yields what is written, with the seconds that were silent before, until the process ends."""
        last = self.started_at
        while select.select([self._fd], [], [], 120.0)[0]:
            try:
                piece = os.read(self._fd, 1 << 16).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            now = time.monotonic()
            self.text += piece
            yield now - last, piece
            last = now
        os.close(self._fd)
        assert self.process.wait(120) is not None

    def last_lines(self) -> list[str]:
        """Returns the last lines as they stay on the screen: the bar is written over."""
        return [line.strip() for line in re.split(r"[\r\n]+", CONTROL.sub("", self.text)) if line.strip()]


@pytest.mark.nightly
def test_a_terminal_is_never_silent_and_ends_with_the_places(tmp_path: Path) -> None:
    """Silence is measured in seconds of an idle machine: on a busy one, the run gets a share of the processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    terminal = Terminal(command(tmp_path, "rollout_size=32"))  # which takes a while
    longest = 0.0
    for silent_s, _ in terminal.pieces():
        if "iteration   0" not in terminal.text:
            longest = max(longest, silent_s)
    assert terminal.process.returncode == 0, terminal.text[-3000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    slowness = max(1.0, (time.monotonic() - terminal.started_at) / worked_s)
    assert "iteration   1" in terminal.text and longest < 2.0 * slowness
    plain = CONTROL.sub("", terminal.text)
    for doing in ("load torch", "collect iteration 0", "1 of 1 workers run"):  # the rest may be too quick
        assert doing in plain
    run = tmp_path / "run"
    assert re.findall(r"run folder (\S+), report (\S+)", plain)[-1] == (str(run), str(run / "report.html"))
    assert (run / "report.html").exists()
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-9]|38)[0-9;]*m", terminal.text), "NO_COLOR is respected"


@pytest.mark.nightly
def test_a_terminal_is_left_clean_by_an_interruption(tmp_path: Path) -> None:
    """SIGTERM ends a run in the way in which Ctrl-C does."""
    terminal = Terminal(command(tmp_path, "train_iterations=1000"))
    sent = False
    for _, piece in terminal.pieces():
        if not sent and "collect iteration" in piece:
            terminal.process.send_signal(signal.SIGTERM)
            sent = True
    assert terminal.process.returncode == 130
    assert terminal.last_lines()[-1] == "interrupted; the same command resumes where it stopped"
    assert "\x1b[?25l" not in terminal.text, "the cursor is visible"


@pytest.mark.nightly
def test_a_pipe_gets_lines_with_times_and_a_reader_that_leaves_ends_the_run(tmp_path: Path) -> None:
    words = command(tmp_path, "train_iterations=1000")
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert run.stdout is not None and run.stderr is not None
    lines = list(itertools.takewhile(lambda line: "iteration   1" not in line, run.stdout))
    run.stdout.close()
    said = run.stderr.read()
    assert run.wait(120) == 141 and "Traceback" not in said, said
    assert any("  iteration   0  success " in line for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S.*\n", line) and "\x1b" not in line for line in lines)
