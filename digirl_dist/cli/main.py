"""The command line: finds the configuration, checks it, runs it, and reports errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from digirl_dist.cli import migrate, workers
from digirl_dist.exit_status import end_by_sigterm_as_by_ctrl_c, exit_status

_USAGE = """\
  python run.py --config-path config/multimachine --config-name host [key=value ...]

configurations in config/multimachine:
  host      train here, collect on the workers in worker_ips over SSH
  worker    collect on this machine alone, to try it as a worker
  eval      measure the newest checkpoint on the test tasks

often used:
  dry_run=true                       localhost workers behind real SSH servers instead of worker_ips
  worker_ips=[10.0.0.2,10.0.0.3]     machines that you can ssh to
  bsize=8 rollout_size=128           emulators on each worker; episodes per iteration over all of them
  emulator=gymnasium emulator.id=ALE/Pong-v5   {emulator}
  agent=device                       {agent}
  train_algorithm=digirl             {algorithm}; or yours: algorithm.entry_point=my_file:Mine
  train_iterations=20 save_path=runs/mine seed=1
  parallel=single                    the same loop without workers

more commands, with the same overrides where they take any (or python run.py setup ...):
  digirl-dist setup [--dry-run]      prepare the machines in worker_ips: Python, the package, the emulator's needs
  digirl-dist doctor [--json] [--try]  check whether a run would start: the defects per machine, with remedies
  digirl-dist why --save-path DIR    explain what a run waits for
  digirl-dist migrate FILE           print DigiRL's own YAML file in this package's words, and what each key became
  digirl-dist eval-jobs --eval_jobs_config jobs.json   measure a list of policies, alone or by torchrun

every key and its meaning: digirl_dist/settings/, and the plugins/ of each room
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed, 2 wrong configuration, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = {"why": _why, "eval-jobs": _eval_jobs}
    commands = {"setup": workers.setup, "doctor": workers.doctor, "migrate": migrate.migrate, **own}
    if words[:1] and words[0] in commands:
        return commands[words[0]](words[1:])
    parser = argparse.ArgumentParser(
        prog="digirl-dist", description=_usage(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-path", default="config/multimachine", help="folder of the YAML files")
    parser.add_argument("--config-name", default="host", help="which of them, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the configuration")
    options = parser.parse_intermixed_args(words)
    return exit_status(lambda: _run(options.config_path, options.config_name, options.overrides))


def _usage() -> str:
    from digirl_dist.settings.plugins import KINDS

    return _USAGE.format(**{kind.name: " | ".join(kind.names()) for kind in KINDS})


def _eval_jobs(words: list[str]) -> int:
    from digirl_dist.evaluate.eval_runner import main as eval_jobs

    return eval_jobs(words)


def _why(words: Sequence[str]) -> int:
    """digirl-dist why --save-path DIR"""
    parser = argparse.ArgumentParser(prog="digirl-dist why", description="explain what a run waits for, and since when")
    parser.add_argument("--save-path", default="runs/host", help="the run's folder")
    options = parser.parse_args(words)
    return exit_status(lambda: _explain(Path(options.save_path).expanduser()))


def _explain(folder: Path) -> int:
    from digirl_dist.report.why import explain

    print(explain(folder))
    return 0


def _run(config_path: str, config_name: str, overrides: Sequence[str]) -> int:
    from digirl_dist.parallel.rank import launched_rank
    from digirl_dist.settings import configuration

    source = configuration.Source(config_path, config_name, tuple(overrides))
    settings = source.load()
    if notice := source.notice:
        print(notice, file=sys.stderr)
    end_by_sigterm_as_by_ctrl_c()
    from digirl_dist.assembly import validate

    validate.refuse_contradictions(settings, rank=launched_rank(os.environ))  # before torch and all else is imported
    from digirl_dist.assembly import run

    run.run(settings, source)
    return 0
