"""A logger follows a run folder, in a process of its own: ``python -m digirl_dist.report.follower RUN NAME``.

It reads what the run writes anyway, so it can neither hold up a run nor lose what came while it was away, and a
finished run can be logged later (``digirl-dist log``).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from select import select

import msgspec

from digirl_dist.child_process import environment, opened_log, reap, tail
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.plain_text import without_secrets_in
from digirl_dist.report.logged import rows, tags
from digirl_dist.report.loggers import LoggedRun, build, rewinds
from digirl_dist.report.metrics import Figures
from digirl_dist.settings import regular_file
from digirl_dist.settings.keys import flat
from digirl_dist.storage import atomic_files
from digirl_dist.storage.json_lines import JsonLines
from digirl_dist.storage.run_folder import config_of, run_id_of
from digirl_dist.types import is_index

CLOSE_S = 30.0
"""How long a logger may take to flush at the end of a run; then its process is killed."""
_LOOK_S = 1.0
_PICTURES = 50
"""About how many iterations of a run get pictures of episodes."""
_MEASURED = ("success_rate", "success_low", "success_high", "reward_mean")


class _Cursor(msgspec.Struct):
    """The newest step that a logger has taken of each kind, by the run's id: a copy of the folder has another one."""

    run_id: str = ""
    figures: int = -1
    evaluation: int = -1


class Follower:
    """Gives a logger what a run folder has and it lacks; ``logger-NAME.json`` there says up to which step it has it."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises RunFolderError, and whatever the logger's library raises."""
        self._folder = folder
        self._path = folder / f"logger-{name}.json"
        self._metrics, self._evaluations = (JsonLines(folder / f"{each}.jsonl") for each in ("metrics", "evaluation"))
        self._config = without_secrets_in(config_of(folder))
        self._learned: list[Figures] = []
        self._measured: list[Figures] = []
        self._look()
        newest = self._learned[-1]["iteration"] if self._learned else -1
        self._cursor = cursor = _read(self._path)
        run_id = run_id_of(folder) or folder.resolve().name
        purge = None
        if rewinds(name) and cursor.figures > newest:  # a crash undid iterations, which are made again
            purge = newest + 1
            cursor.figures, cursor.evaluation = newest, min(cursor.evaluation, newest)
        elif not rewinds(name) and cursor.run_id != run_id:
            cursor.figures = cursor.evaluation = -1
        cursor.run_id = run_id
        iterations = self._config.get("train_iterations")
        self._picture_every = max(1, iterations // _PICTURES) if is_index(iterations) else 1
        self._logger = build(name, self._run(run_id, purge))

    def follow(self, is_ended: Callable[[], bool]) -> str | None:
        """Returns when the run has ended and the logger has everything, where that is; ``is_ended`` waits a little."""
        goes_on = True
        while goes_on:
            goes_on = not is_ended()
            self._look()
            self._give(everything=not goes_on)
        signal.alarm(int(CLOSE_S))  # the run may have been killed, and nobody else would end what hangs now
        return self._logger.close()

    def _look(self) -> None:
        """Reads metrics first: what was measured before an iteration is there once its figures are."""
        self._learned += [line for line in self._metrics.news() if _step(line) is not None]
        self._measured += [line for line in self._evaluations.news() if _step(line) is not None]

    def _give(self, everything: bool) -> None:
        """Gives what is new, in the order of the steps, as services refuse a step that is less than the last one."""
        newest = max(self._cursor.figures, *(line["iteration"] for line in self._learned), -1)
        due = [line for line in self._measured if everything or line["checkpoint"] <= newest + 1]
        self._measured = [line for line in self._measured if line not in due]
        learned, self._learned = self._learned, []
        for line in sorted([*due, *learned], key=lambda line: (_step(line), "checkpoint" not in line)):
            if "checkpoint" in line:
                self._evaluation(line, line["checkpoint"])
            else:
                self._iteration(line, line["iteration"])
            atomic_files.write_text(self._path, json.dumps(msgspec.to_builtins(self._cursor)))

    def _evaluation(self, line: Figures, step: int) -> None:
        if step > self._cursor.evaluation:
            self._logger.figures(tags({f"evaluation/{name}": line.get(name) for name in _MEASURED}), step)
            self._cursor.evaluation = step

    def _iteration(self, line: Figures, step: int) -> None:
        if step > self._cursor.figures:
            self._logger.figures(tags(line), step)
            file = self._folder / "trajectories" / f"{step:06d}.parquet"
            if found := rows(file, step % self._picture_every == 0):
                self._logger.episodes(without_secrets_in(found), step)
            self._cursor.figures = step

    def _run(self, run_id: str, purge: int | None) -> LoggedRun:
        settings = dict(flat(self._config))
        plain = {
            key: each if isinstance(each, float | str) or (isinstance(each, int) and abs(each) < 2**63) else str(each)
            for key, each in settings.items()
        }
        project = str(settings.get("wandb_project") or settings.get("logger_project"))
        return LoggedRun(run_id, self._folder.resolve().name, self._folder, project, plain, purge)


class Followers:
    """The processes of a run's loggers; ``failed`` is told of each that fails, once."""

    def __init__(self, names: Sequence[str], folder: Path, failed: Callable[[str, str], None]) -> None:
        self._names = names
        self._folder = folder
        self._failed = failed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        """Starts them, once: the metrics must be those of the checkpoint with which the run continues."""
        for name in self._names:
            with opened_log(self._log(name)) as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "digirl_dist.report.follower", str(self._folder), name],
                    stdin=subprocess.PIPE,  # its end is the end of the run
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C must reach only the host
                    env=environment(),
                )
        self._names = ()

    def look(self) -> None:
        """Reports those that have failed."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._end(name, process, 0.0)

    def close(self) -> None:
        """Waits at most CLOSE_S for all of them; what was not logged by then is when the run is resumed."""
        deadline = time.monotonic() + CLOSE_S
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for name, process in list(self._processes.items()):
            self._end(name, process, max(0.0, deadline - time.monotonic()))

    def _end(self, name: str, process: subprocess.Popen[bytes], limit_s: float) -> None:
        del self._processes[name]
        log = self._log(name)
        if not reap(process, limit_s):
            self._failed(name, f"it did not finish within {CLOSE_S:.0f} s and was ended (see {log})")
        elif process.returncode:
            words = "".join(tail(log, 1))[:300]
            self._failed(name, f"its process ended with status {process.returncode}: {words} (see {log})")

    def _log(self, name: str) -> Path:
        return self._folder / f"logger-{name}.log"


def _step(line: Figures) -> int | None:
    step = line.get("checkpoint", line.get("iteration"))
    return step if is_index(step) else None


def _read(path: Path) -> _Cursor:
    try:
        return msgspec.json.decode(regular_file.content(path), type=_Cursor)
    except (OSError, ValueError, RecursionError):
        return _Cursor()


def main(folder: str, name: str) -> None:
    """Follows until the process that started this one closes stdin, or ends."""
    Follower(Path(folder), name).follow(lambda: bool(select([sys.stdin], [], [], _LOOK_S)[0]))


if __name__ == "__main__":
    end_without_a_search_for_garbage()
    main(*sys.argv[1:])
