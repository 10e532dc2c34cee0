"""What commands have in common: their shape, and where a configuration lies, overrides of it, and what it becomes."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist.cli.completion import complete_override
from digirl_dist.errors import NoRunError, SettingsError
from digirl_dist.exit_status import Parser
from digirl_dist.settings.keys import key_of, quoted
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.places import HERE

if TYPE_CHECKING:
    from digirl_dist.settings import Settings
    from digirl_dist.settings.configuration import Source

_OFTEN_USED = """\
often used:
  dry_run=true                       localhost workers behind real SSH servers instead of worker_ips
  worker_ips=[10.0.0.2,10.0.0.3]     machines that you can ssh to
  bsize=8 rollout_size=128           emulators on each worker; episodes per iteration over all of them
  emulator=gymnasium emulator.id=ALE/Pong-v5   {emulator}
  agent=device                       {agent}
  train_algorithm=digirl             {algorithm}; or yours: algorithm.entry_point=my_file:Mine
  train_iterations=20 save_path=runs/mine seed=1
  parallel=single                    the same loop without workers

every key and its meaning: `digirl-dist settings`
"""


class Command:
    """One command: ``execute`` returns the exit status and may raise a DigirlDistError; its docstring is the help."""

    def __init__(
        self, execute: Callable[[argparse.Namespace], int], *add: Callable[[argparse.ArgumentParser], object]
    ) -> None:
        self.execute = execute
        self._add = add

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (self.execute.__doc__ or "").splitlines()[0].rstrip(".")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for add in self._add:
            add(parser)

    def parser(self, name: str) -> argparse.ArgumentParser:
        about = textwrap.dedent(f"    {self.execute.__doc__}")
        parser = Parser(prog=f"digirl-dist {name}", description=about, formatter_class=_Help)
        self.add_arguments(parser)
        return parser


def often_used() -> str:
    """Returns the keys that most people set."""
    from digirl_dist.settings.plugins import KINDS

    return _OFTEN_USED.format(**{kind.name: " | ".join(kind.names()) for kind in KINDS})


def argument(*names: str, **about: Any) -> Callable[[argparse.ArgumentParser], object]:
    """Returns what adds one argument to a parser, with the words of ``add_argument``."""
    return lambda parser: parser.add_argument(*names, **about)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    words = parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the configuration")
    words.completer = complete_override  # type: ignore[attr-defined]
    parser.epilog = often_used()


def add_configuration(parser: argparse.ArgumentParser, name: str = "host") -> None:
    """Adds the options that say where the configuration lies, and the overrides."""
    parser.add_argument("--config-path", default=HERE, help="folder of the YAML files")
    parser.add_argument("--config-name", default=name, help=f"which of them, without .yaml (default: {name})")
    add_overrides(parser)


RUN_FOLDER = argument(
    "run",
    nargs="?",
    type=expanded,
    metavar="RUN",
    help="the run's folder, its save_path (default: the newest in runs/)",
)
EMULATOR = argument("--emulator", help="the same as emulator=…")
TRUST = argument(
    "--trust",
    action="store_true",
    help="use the classes, files, programs and machines that the run folder names, because you know who made it",
)


def run_of(options: argparse.Namespace) -> Path:
    """Returns the folder of the run that is meant. Raises NoRunError."""
    from digirl_dist.storage.run_folder import RUNS, existing_run, newest_run

    run = options.run or newest_run()
    if run is None:
        raise NoRunError(f"there is no run in {RUNS.absolute()}: name the folder of one")
    return existing_run(run)


def source_of(options: argparse.Namespace) -> Source:
    """Returns where the configuration comes from."""
    from digirl_dist.settings.configuration import Source

    return Source(options.config_path, options.config_name, tuple(options.overrides))


def settings_of(options: argparse.Namespace) -> Settings:
    """Returns the configuration of a command that has ``--emulator``. Raises SettingsError."""
    from digirl_dist.settings import configuration

    chosen = [f"emulator={options.emulator}"] if options.emulator else []
    if both := [each for each in options.overrides if chosen and key_of(each) == "emulator"]:
        raise SettingsError(f"{both[0]} and --emulator {options.emulator} say the same twice: leave one of them out")
    return configuration.load(options.config_path, options.config_name, [*chosen, *options.overrides])


def of_run_folder(folder: Path, overrides: Sequence[str], trust: bool, uses: tuple[str, ...] = ()) -> Source:
    """Returns the configuration that a run folder holds, for the same folder. Raises SettingsError.

    So it does for overrides that name another folder. ``uses`` are the keys that the command uses, if not all.
    """
    from digirl_dist.settings.run_source import RunSource
    from digirl_dist.storage.run_folder import existing_run

    root = existing_run(folder).resolve()
    if elsewhere := [each for each in overrides if key_of(each) == "save_path"]:
        raise SettingsError(f"{elsewhere[0]} contradicts {folder}, whose configuration this is: leave one of them out")
    return RunSource(str(root), overrides=(f"save_path={quoted(str(root))}", *overrides), trust=trust, uses=uses)


def fitted(text: str, width: int | None = None) -> str:
    """Returns ``text`` in lines of ``width``, the terminal's if None; what follows two blanks keeps its column."""
    width = width or shutil.get_terminal_size().columns
    paragraphs = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    return "\n".join(_fitted(line, width) for line in paragraphs.split("\n"))


def _fitted(line: str, width: int) -> str:
    start = re.match(r" *\S.*?  +", line)
    column = start.end() if start and start.end() < width / 2 else len(line) - len(line.lstrip())
    return textwrap.fill(line, width, subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False)


class _Help(argparse.RawDescriptionHelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fitted(text, width)
