"""Prepares one worker over SSH: the steps of its emulator, then the package. Leaves alone what is already installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import digirl_dist
from digirl_dist.emulator.plugins import EmulatorPlugin
from digirl_dist.errors import InstallError, SilentError, WorkerError
from digirl_dist.fleet.install import Package, ensure_installed, installed_python, what_is_missing
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.settings import EmulatorSettings, InstallSettings, SshSettings
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection


@dataclass(frozen=True)
class Steps:
    """Bash scripts and their environment: ``script`` runs before the package is installed, ``after`` runs after it."""

    script: str
    after: str = ""
    variables: dict[str, str] = field(default_factory=dict)


def steps(emulator: EmulatorSettings, worker_config: WorkerConfig, install: InstallSettings, dry_run: bool) -> Steps:
    """Returns the scripts of one worker. An emulator without its own script needs only Python."""
    folder = _folder()
    frame = (folder / "steps.sh").read_text("utf-8")
    name = (isinstance(emulator, EmulatorPlugin) and emulator.machine) or emulator.name
    scripts = (folder / place / f"{name}.sh" for place in ("emulators", "after"))
    own, after = (script.read_text("utf-8") if script.is_file() else "" for script in scripts)
    variables = {
        "PYTHON": worker_config.python,
        "PACKAGE_PYTHON": installed_python(worker_config.run_path),
        "DRY_RUN": "yes" if dry_run else "",
    }
    if isinstance(emulator, EmulatorPlugin):
        variables |= {name: value for name, value in emulator.setup_variables(install).items() if value}
    before = "\n".join([frame, (folder / "python.sh").read_text("utf-8"), own])
    return Steps(before, f"{frame}\n{after}" if after else "", variables)


def _folder() -> Path:
    """Returns the folder of scripts: in the wheel, else in the checkout."""
    package = Path(digirl_dist.__file__).resolve().parent
    inside = package / "worker"
    return inside if inside.is_dir() else package.parent / "worker"


_STATES = ("ok", "would", "doing", "done", "failed")
_MOST_STEPS = 20
_REPORTS = 3
"""Lines of a step that are shown, at most."""
_LAST_LINES, _LONGEST = 50, 4000
"""Lines of a failure that are shown, and characters of a line."""
_PACKAGE = "digirl_dist and what it depends on"


@dataclass(frozen=True)
class SetupProgress:
    """The state of one step on a worker: ok, would, doing, done or failed, as in ``worker/steps.sh``."""

    worker: str
    state: str
    step: str
    message: str = ""


Tell = Callable[[SetupProgress], None]


@dataclass(frozen=True)
class Preparation:
    """The preparation of one worker. Each step may take ``package.limit_s`` seconds."""

    worker_config: WorkerConfig
    steps: Steps
    package: Package
    dry_run: bool


def prepare(preparation: Preparation, ssh: SshSettings, tell: Tell) -> WorkerError | None:
    """Prepares a worker and passes each step to ``tell``; returns the error that stopped it, or None."""
    try:
        with connect(preparation.worker_config.address, ssh) as connection:
            _run(preparation, preparation.steps.script, connection, tell)
            _install(preparation, connection, tell)
        if preparation.steps.after:  # a new login, because new group memberships need one
            with connect(preparation.worker_config.address, ssh) as connection:
                _run(preparation, preparation.steps.after, connection, tell)
    except WorkerError as error:
        return error
    return None


def _run(preparation: Preparation, script: str, connection: Connection, tell: Tell) -> None:
    """Runs a script. Raises InstallError with the failed command and its last lines, or LinkLostError."""
    variables = [f"{name}={value}" for name, value in preparation.steps.variables.items()]
    with closing(connection.open(["env", *variables, "bash", "-s"])) as channel:
        channel.write(script.encode())
        channel.close_input()
        for progress in islice(_progress(channel, preparation.package.limit_s), _REPORTS * _MOST_STEPS):
            tell(progress)
            if progress.state == "failed":
                raise _failure(channel, progress)
        if channel.wait(preparation.package.limit_s) != 0:
            raise InstallError(connection.worker, f"the setup's shell failed: {channel.stderr_tail()}")


def _progress(channel: Channel, limit_s: float) -> Iterator[SetupProgress]:
    deadline = time.monotonic() + _MOST_STEPS * limit_s
    while line := _line(channel, min(limit_s, max(0.0, deadline - time.monotonic()))):
        state, _, rest = line.partition("\t")
        step, _, message = rest.partition("\t")
        if state in _STATES and step:
            yield SetupProgress(channel.worker, state, step, message)


def _failure(channel: Channel, progress: SetupProgress) -> InstallError:
    said: list[str] = []
    while len(said) < _LAST_LINES and (line := _line(channel, 10.0)):
        said.append(line)
    command = f"`{progress.message}`: " if progress.message else ""
    return InstallError(channel.worker, f"{progress.step}: {command}" + "\n".join(said))


def _line(channel: Channel, limit_s: float) -> str:
    """Returns the next line, or "" at the end of the output."""
    try:
        return channel.readline(limit_s).decode(errors="replace")[:_LONGEST].rstrip("\n")
    except SilentError as error:
        raise InstallError(
            channel.worker,
            f"a step of the setup did not end within {limit_s:g} s",
            "raise install.limit_s, or look what hangs there",
        ) from error


def _install(preparation: Preparation, connection: Connection, tell: Tell) -> None:
    worker_config, package = preparation.worker_config, preparation.package
    place = package, worker_config.run_path, worker_config.python
    started = time.monotonic()
    if preparation.dry_run:
        missing = _what_would_be_missing(connection, *place)
        tell(
            SetupProgress(
                worker_config.name, "would" if missing else "ok", _PACKAGE, missing and f"install it: {missing}"
            )
        )
    elif not what_is_missing(connection, *place):
        tell(SetupProgress(worker_config.name, "ok", _PACKAGE))
    else:
        tell(SetupProgress(worker_config.name, "doing", _PACKAGE))
        ensure_installed(connection, *place)
        tell(SetupProgress(worker_config.name, "done", _PACKAGE, f"{time.monotonic() - started:.0f} s"))


def _what_would_be_missing(connection: Connection, package: Package, folder: str, python: str) -> str:
    try:
        return what_is_missing(connection, package, folder, python)
    except InstallError as error:
        return error.reason  # Python itself is missing, which a step before has reported
