"""Commands that prepare and run a configuration."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.cli.shared import (
    EMULATOR,
    TRUST,
    Command,
    add_configuration,
    add_overrides,
    argument,
    of_run_folder,
    settings_of,
    source_of,
)
from digirl_dist.errors import SettingsError
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c, interruptions_wait
from digirl_dist.parallel.rank import Rank, launched_rank
from digirl_dist.plain_text import nearest, printable, without_secrets_in
from digirl_dist.report.output import shown
from digirl_dist.settings.keys import quoted
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.places import HERE, own_folder
from digirl_dist.settings.unread import refuse_others_overrides
from digirl_dist.storage import atomic_files

if TYPE_CHECKING:
    from digirl_dist.doctor.setup import SetupProgress
    from digirl_dist.serve.server import Server
    from digirl_dist.settings.configuration import Source

_MOST_EPISODES = 1000
_MEASURES = ("task_mode=evaluate", "task_split=test", "task_order=sequential")


def _run(options: argparse.Namespace) -> int:
    """Trains on this host, and collects on the workers in worker_ips or on this machine."""
    return run_configuration(source_of(options), options.resume)


def _demo(options: argparse.Namespace) -> int:
    """Trains on a drawn phone, on this machine alone: two localhost workers behind real SSH servers, runs/demo."""
    from digirl_dist.settings.configuration import Source

    source = Source(HERE, "host", ("dry_run=true", "save_path=auto", *options.overrides))
    return run_configuration(source, options.resume, name="demo")


def _eval(options: argparse.Namespace) -> int:
    """Evaluates the newest checkpoint of a run on the test tasks, on the same workers: eval runs/mine.

    With a run folder, the configuration is that run's own; without one, it is eval.yaml of --config-path.
    """
    words = options.overrides
    if words and ("=" not in words[0] or expanded(words[0]).is_dir()):
        if (options.config_path, options.config_name) != (HERE, "eval"):
            raise SettingsError(
                f"eval {words[0]} takes the run's own configuration: leave out --config-path and --config-name"
            )
        return run_configuration(
            of_run_folder(expanded(words[0]), (*_MEASURES, *words[1:]), options.trust), watched=False
        )
    if options.trust:
        raise SettingsError("--trust is for the folder of a run, as in: eval runs/mine --trust; leave it out")
    return run_configuration(source_of(options))


def _regrade(options: argparse.Namespace) -> int:
    """Judges a run's episodes again, by a function or a model: regrade runs/mine --success predicate predicate=f:done.

    The judge is the run's own unless you name another. Verdicts go to verdicts/NAME.jsonl in its folder, each once;
    what ends early is continued by the same command. `export --verdicts NAME` and Run.episodes(verdicts=NAME) read
    them.
    """
    end_by_signals_as_by_ctrl_c()
    with shown("read the configuration", sys.stderr) as progress:
        words = f"success={options.success}", *options.overrides
        source = of_run_folder(options.run, words, options.trust, uses=("success", "predicate", "judge"))
        settings = source.load()
        from digirl_dist.evaluate.regrade import regrade

        if notice := source.notice:
            progress.say(notice)
        told = regrade(source.folder, settings, options.name or options.success, progress)
    print(printable(told))
    return 0


_OF_REGRADE = (
    argument("run", type=expanded, metavar="RUN", help="the run's folder, its save_path"),
    add_overrides,
    argument("--success", choices=["predicate", "judge"], required=True, help="who judges"),
    argument("--name", help="of the verdicts (default: predicate, or judge)"),
)


def _eval_jobs(options: argparse.Namespace) -> int:
    """Evaluates a list of policies, in one process or under torchrun: eval-jobs --eval_jobs_config jobs.json."""
    from digirl_dist.evaluate import eval_runner

    return eval_runner.execute(options)


_OF_DOCTOR = (
    argument("--json", action="store_true", help="print a list of {worker, check, ok, detail, remedy}"),
    argument("--try", action="store_true", dest="try_emulators", help="also start one emulator per worker"),
    argument("--tasks", action="store_true", help="look at the tasks instead: play each one on this machine"),
    argument("--episodes", type=int, metavar="N", help="with --tasks: episodes of each player (default: 4)"),
)


def _doctor(options: argparse.Namespace) -> int:
    """Checks whether a run would start: the host and every worker, with the remedy for each failure.

    With --tasks, whether the tasks are sound: each is played without doing anything, by the untrained agent and, where
    the emulator has one, by an oracle. Names tasks that do not start or hang, and rewards that come for nothing or
    cannot be had.
    """
    if options.tasks:
        return _doctor_of_tasks(options)
    if options.episodes is not None:
        raise SettingsError(f"--episodes {options.episodes} is for --tasks: add that, or leave it out")
    with shown("read the configuration", sys.stderr) as progress:
        from digirl_dist.assembly import setup_doctor
        from digirl_dist.doctor.check import as_table, would_start

        settings = settings_of(options)
        refuse_others_overrides(options.overrides, ranks=False)
        progress.status.host("examine the host and the workers")
        checks = list(setup_doctor.doctor(settings, options.try_emulators, progress.status))
    if options.json:
        print(json.dumps(without_secrets_in([check.to_json() for check in checks]), indent=1, ensure_ascii=True))
    else:
        print(printable(as_table(checks)))
    return 0 if would_start(checks) else 1


def _doctor_of_tasks(options: argparse.Namespace) -> int:
    episodes = 4 if options.episodes is None else options.episodes
    if options.try_emulators or not 1 <= episodes <= _MOST_EPISODES:
        raise SettingsError(
            "--try is for workers: with --tasks, leave it out"
            if options.try_emulators
            else f"--episodes {episodes} must be from 1 to {_MOST_EPISODES}"
        )
    end_by_signals_as_by_ctrl_c()
    with shown("read the configuration", sys.stderr) as progress:
        settings = settings_of(options)
        refuse_others_overrides(options.overrides, ranks=False)
        progress.status.host("load torch and the emulator")
        with interruptions_wait():
            importlib.import_module("torch")
        from digirl_dist.assembly import setup_doctor
        from digirl_dist.doctor.census import as_text, is_sound

        job = setup_doctor.census_job(settings, episodes)
        progress.status.host("play the tasks")
        found = setup_doctor.census(job, progress.status)
    if options.json:
        print(json.dumps(without_secrets_in([one.to_json(job) for one in found]), indent=1, ensure_ascii=True))
    else:
        print(printable(as_text(found, job)))
    return 0 if is_sound(found, job) else 1


def _setup(options: argparse.Namespace) -> int:
    """Prepares all workers over SSH: Python, the package, what the emulator needs. A second run changes nothing."""
    counts: Counter[str] = Counter()
    end_by_signals_as_by_ctrl_c()
    with shown("read the configuration", sys.stdout) as progress:
        settings = settings_of(options)
        from digirl_dist.assembly import setup_doctor

        def tell(told: SetupProgress) -> None:
            counts[told.state] += 1
            text = f"{told.step}: {told.message}" if told.message else told.step
            progress.say(f"{told.worker:<16} {told.state:<6} {text}", "red" if told.state == "failed" else "")

        progress.status.host("prepare the workers")
        errors = setup_doctor.setup(settings, options.dry_run, tell, progress.status)
    for error in errors:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    print(_summary(counts, len(errors), options.dry_run))
    return 1 if errors else 0


def _summary(counts: Counter[str], failures: int, dry_run: bool) -> str:
    changed = f"{counts['would']} steps would be done" if dry_run else f"{counts['done']} steps done"
    ready = "no failure" if dry_run else "all workers are ready"
    verdict = f"workers that failed: {failures}" if failures else ready
    return f"{changed}, {counts['ok']} were done before; {verdict}"


def _init(options: argparse.Namespace) -> int:
    """Writes config/multimachine/host.yaml below the working directory: the YAML file to edit, which run then reads."""
    file = expanded(options.config_path) / "host.yaml"
    if file.parent.exists() and not file.parent.is_dir():
        raise SettingsError(f"--config-path {options.config_path} is no folder")
    if os.path.lexists(file):
        raise SettingsError(f"{file} is there already: edit it, or name another --config-path")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(file, (own_folder() / "host.yaml").read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"--config-path {options.config_path} cannot be written: {error.strerror}") from error
    named = "" if options.config_path == HERE else f" --config-path {shlex.quote(str(file.parent))}"
    print(f"{file}: name your workers in it, then `digirl-dist setup{named}` and `digirl-dist run{named}`")
    return 0


def _migrate(options: argparse.Namespace) -> int:
    """Translates DigiRL's own YAML file into this package's words and prints it: migrate FILE.

    Comments say what became of each key. The exit status is 0 if the new file is complete, and 2 if a key cannot be
    used; comments name such keys (docs/digirl.md).
    """
    with shown("read the configuration", sys.stderr):
        from digirl_dist.settings import configuration, digirl_files
        from digirl_dist.settings.safe_yaml import read_yaml

        file = options.file.resolve()
        if file.is_dir():
            found = sorted(each.name for each in file.glob("*.yaml") if digirl_files.is_digirl(file, each.name))
            there = nearest("", found) if found else "there is none"
            raise SettingsError(f"{file} is a folder: name one of DigiRL's files in it; {there}")
        if not file.is_file():
            near = sorted(str(each) for each in file.parent.glob("*.yaml"))
            raise SettingsError(f"there is no file {file}; {nearest(str(file), near) if near else 'correct the path'}")
        if not digirl_files.is_digirl(file.parent, file.name):
            read_yaml(file, named=True)  # raises if that is why
            marks = ", ".join(sorted(digirl_files.MARKS))
            raise SettingsError(f"{file} is no configuration of DigiRL's: it has none of their keys, such as {marks}")
        migrated = digirl_files.migrate(file.parent, file.name)
    print(migrated.to_yaml(), end="")
    migrated.refuse()
    configuration.load(str(own_folder()), digirl_files.BASE, migrated.overrides(()))  # refuses values that no run takes
    return 0


def run_configuration(source: Source, resume: bool = False, name: str = "", watched: bool = True) -> int:
    """Trains or measures; refuses what is wrong before torch is imported.

    ``resume`` and ``name`` decide about ``save_path=auto``. Returns the exit status; if ``watched``, workers join and
    leave as in the files. Raises DigirlDistError.
    """
    rank = launched_rank(os.environ)
    end_by_signals_as_by_ctrl_c()
    try:
        return _run_as(rank, source, resume, name, watched)
    except KeyboardInterrupt:
        if rank is None or rank.is_first:
            raise
        return 130  # rank 0 says it


def _run_as(rank: Rank | None, source: Source, resume: bool, name: str, watched: bool) -> int:
    leads = rank is None or rank.is_first
    with shown("read the configuration", sys.stdout if leads else None) as progress:
        from digirl_dist.assembly import validate
        from digirl_dist.assembly.parts import choose_folder
        from digirl_dist.assembly.trainers import on_ranks, starts_ranks

        settings = source.load()
        refuse_others_overrides(source.overrides, ranks=False)
        choose_folder(settings, rank, resume, name)
        if notice := source.notice:
            progress.say(notice)
        if leads:
            validate.refuse_before_start(settings, rank)
        if not starts_ranks(settings, rank):
            progress.status.host("load torch and the parts of the run")
            with interruptions_wait():
                importlib.import_module("torch")
                from digirl_dist.assembly import run as assembled

            assembled.run(settings, source if watched else None, progress)
            return 0
    return on_ranks(settings, [*source.words, f"save_path={quoted(settings.save_path)}"])


_RESUME = argument(
    "--resume",
    action="store_true",
    help="with save_path=auto: continue the newest run, also one that has finished or was another experiment",
)
_OF_SERVE = (
    argument(
        "--policy",
        type=expanded,
        metavar="FOLDER",
        help="who acts: the folder of a checkpoint or an export (default: who acted last, or agent=…)",
    ),
    argument("--port", type=int, help="port on the address (default: a free one)"),
    argument("--socket", type=expanded, metavar="PATH", help="listen on a Unix socket instead"),
    argument(
        "--address", default="127.0.0.1", help="another one than 127.0.0.1 opens the port to a network, unencrypted"
    ),
    argument(
        "--token", type=expanded, metavar="FILE", help="file with the token (default: SAVE_PATH/serve.token, made anew)"
    ),
)


def _serve(options: argparse.Namespace) -> int:
    """Serves rollouts over HTTP to any trainer: POST /rollouts asks for them, GET /rollouts delivers them as they end.

    Listens on a loopback port, or a Unix socket of this user's, for requests with the token, which is in a file of this
    user's. From another machine: ssh -L 8765:127.0.0.1:8765 THIS_MACHINE, with --port 8765 here. The same command
    continues with all that was asked for, whatever ended it.
    """
    if options.socket is not None and options.port is not None:
        raise SettingsError(f"--socket {options.socket} and --port {options.port} are two places: leave one out")
    end_by_signals_as_by_ctrl_c()
    refuse_others_overrides(options.overrides, ranks=False)
    with ExitStack() as stack:
        with shown("start the fleet", sys.stderr):
            server, file = _server(options, stack)
        print(f"{printable(server.place)} answers requests with the token in {printable(str(file))}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve()
    return 0


def _server(options: argparse.Namespace, stack: ExitStack) -> tuple[Server, Path]:
    """Returns a server whose fleet has started, and the file with its token; ``stack`` takes both down."""
    from digirl_dist.settings.configuration import Source
    from digirl_dist.settings.extras import extra_needed, refuse_without_torch

    refuse_without_torch("digirl-dist serve")
    with extra_needed("digirl-dist serve", "Starlette and uvicorn", "serve"), interruptions_wait():
        from digirl_dist.api.fleet import Fleet
        from digirl_dist.api.policy import Policy
        from digirl_dist.serve.server import Server, listen, token_in
        from digirl_dist.serve.service import Service
    source = Source(options.config_path, options.config_name, ("save_path=runs/serve", *options.overrides))
    at = options.socket or (options.address, options.port or 0)
    named = options.policy and Policy.from_folder(options.policy, options.trust)
    try:
        listening = stack.enter_context(listen(at))
    except (OSError, OverflowError) as error:
        where = f"--socket {at}" if options.socket else f"--address {at[0]} --port {at[1]}"
        raise SettingsError(f"{where} cannot be listened on: {error}; name another") from error
    fleet = stack.enter_context(Fleet.configured(source))
    file = options.token or fleet.folder / "serve.token"
    token = token_in(file)
    service = Service(fleet, named or fleet.starting_policy(options.trust), options.trust)
    stack.callback(service.close)
    return Server(service, token, at, listening), file


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    from digirl_dist.evaluate import eval_runner

    eval_runner.add_arguments(parser)


COMMANDS = {
    "demo": Command(_demo, add_overrides, _RESUME),
    "doctor": Command(_doctor, add_configuration, EMULATOR, *_OF_DOCTOR),
    "eval": Command(_eval, partial(add_configuration, name="eval"), TRUST),
    "eval-jobs": Command(_eval_jobs, _add_jobs),
    "init": Command(
        _init, argument("--config-path", default=HERE, help=f"the folder to write it to (default: {HERE})")
    ),
    "migrate": Command(
        _migrate, argument("file", type=expanded, help="DigiRL's file, beside the files that it includes")
    ),
    "regrade": Command(_regrade, *_OF_REGRADE, TRUST),
    "run": Command(_run, add_configuration, _RESUME),
    "serve": Command(_serve, add_configuration, *_OF_SERVE, TRUST),
    "setup": Command(
        _setup,
        add_configuration,
        EMULATOR,
        argument("--dry-run", action="store_true", help="only print what would be done"),
    ),
}
