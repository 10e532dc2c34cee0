"""Runs one reading command on many folders in this process, and reports what it did that nobody allowed.

``python hostile_reading.py COMMAND PLACE VICTIM FOLDER ...`` prints a JSON list of what is wrong. PLACE is the one
folder beside the run's own that may be written to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

MOST_MB, MOST_S = 512, 20
_FORBIDDEN = {"antigravity", "this", "stranger_code", "torch.hub"}
_STARTS = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
_REACHES = ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
_CHANGES = ("os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate")
_FOLDER_AT = {"os.chmod": 2, "os.mkdir": 2, "os.remove": 1, "os.rmdir": 1}
"""Which argument is the open folder from which the path leads, as ``shutil.rmtree`` goes; -1 is none."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """The audit hook. It cannot be removed, so it looks only while there is a folder."""

    def __init__(self, place: Path, victim: Path) -> None:
        self.folder: Path | None = None
        self.wrong: list[str] = []
        self._place, self._victim = place, victim
        self._looks = True
        self.is_on = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is not None and self._looks:
            self._looks = False
            try:
                if what := self._refused(event, arguments):
                    self.wrong.append(f"{self.folder.name}: {event} {what}")
            finally:
                self._looks = True

    def _refused(self, event: str, arguments: tuple[Any, ...]) -> str:
        match event, arguments:
            case "import", (str() as name, *_) if name in _FORBIDDEN:
                return name
            case "exec", (code, *_) if str(self.folder) in getattr(code, "co_filename", ""):
                return str(code)
            case "open", (str() | bytes() as path, _, int() as flags):
                return self._refused_file(os.fsdecode(path), flags)
        if event.startswith((*_STARTS, *_REACHES)):
            return f"{arguments!r:.200}"
        at = arguments[_FOLDER_AT[event]] if event in _FOLDER_AT else -1
        base = os.readlink(f"/proc/self/fd/{at}") if at >= 0 else ""
        paths = [each for each in arguments if isinstance(each, str) and event in _CHANGES]
        changed = [os.path.join(base, each) for each in paths]
        return "".join(each for each in changed if not self._may_be_written(each))

    def _refused_file(self, path: str, flags: int) -> str:
        if os.path.realpath(path) == str(self._victim):
            return path
        return path if flags & _WRITES and not self._may_be_written(path) else ""

    def _may_be_written(self, path: str) -> bool:
        folder, name = os.path.split(os.path.abspath(path))
        file = Path(os.path.realpath(folder), name)
        return any(file.is_relative_to(each) for each in (self._place, str(self.folder), os.devnull))


def _cli(*words: str) -> None:
    from digirl_dist.assembly import run
    from digirl_dist.cli.main import main

    run.run = lambda *_: None  # what follows the gate is the work of a run
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        main(words)


def _explain(folder: Path, _: Path) -> None:
    from digirl_dist.viewer.explainer import _explain as explain

    explain(folder, "t1.0", None, False)


def _api(folder: Path, _: Path) -> None:
    from digirl_dist import Run

    run = Run(folder)
    run.episodes(), run.checkpoints(), run.figures(), run.steps(), run.policy()


def _start(folder: Path, place: Path) -> None:
    from digirl_dist.storage.start import start_of

    start = start_of(str(folder), place / "new")
    assert start is not None
    start.agent, start.checkpoint.state()


COMMANDS: dict[str, Callable[[Path, Path], None]] = {
    "why": lambda folder, place: _cli("why", str(folder)),
    "report": lambda folder, place: _cli("report", str(folder)),
    "view": lambda folder, place: _cli("view", str(folder), "--bundle", str(place / "runs.html")),
    "atif": lambda folder, place: _cli("export", str(folder), "--to", "atif", str(place / folder.name)),
    "policy": lambda folder, place: _cli("export", str(folder), "--to", "policy", str(place / f"{folder.name}-policy")),
    "eval": lambda folder, place: _cli("eval", str(folder)),
    "start_from": _start,
    "explain": _explain,
    "Run": _api,
}


@contextmanager
def _ended_in_time(watch: Watch) -> Iterator[None]:
    if not watch.is_on:  # libraries are being imported, which takes long on a busy machine
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError(f"it takes more than {MOST_S} s")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)  # of this process's own time: the machine may be busy
    signal.signal(signal.SIGALRM, end)
    signal.alarm(30 * MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def _most_memory_mb() -> int:
    """The peak of this very program; ``ru_maxrss`` would count the process that it was forked from."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


def _read(command: str, folder: Path, place: Path, watch: Watch) -> None:
    from digirl_dist.errors import DigirlDistError

    watch.folder = folder
    try:
        with _ended_in_time(watch):
            COMMANDS[command](folder, place)
    except (DigirlDistError, SystemExit) as error:
        if not watch.is_on and not (isinstance(error, SystemExit) and not error.code):
            watch.wrong.append(f"{folder.name} is refused: {error!r}")  # then all folders may be for the same reason
    except BaseException:
        watch.wrong.append(f"{folder.name}: {traceback.format_exc()[-1500:]}")
    watch.folder = None
    taken = _most_memory_mb()
    if taken > MOST_MB and not any("MB" in each for each in watch.wrong):
        watch.wrong.append(f"{folder.name}: {taken} MB")


def main() -> None:
    command, place, victim, usual, *folders = sys.argv[1:]
    watch = Watch(Path(place), Path(victim))
    _read(command, Path(usual), Path(place), watch)  # imports what the command needs
    watch.is_on = True
    sys.addaudithook(watch)
    for folder in map(Path, folders):
        _read(command, folder, Path(place), watch)
    sys.stdout.write(json.dumps(watch.wrong))


if __name__ == "__main__":
    main()
