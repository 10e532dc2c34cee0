"""The command line: finds the command, has it executed, and reports errors in one line."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

import digirl_dist
from digirl_dist.capacity import let_waiting_threads_sleep
from digirl_dist.cli import look, train
from digirl_dist.cli.completion import answer_the_shell, is_asked_by_a_shell, print_completion
from digirl_dist.cli.shared import Command, argument, fitted, often_used
from digirl_dist.errors import SettingsError
from digirl_dist.exit_status import RESUMES, WORDS, end_without_a_search_for_garbage, exit_status

_OVERVIEW = """\
digirl-dist {version}: trains device-control agents with reinforcement learning on any machines you can ssh to

usage: digirl-dist COMMAND [options] [key=value ...]
  digirl-dist COMMAND --help explains one of them

{commands}
  {run}

{keys}
try it on this machine alone:  digirl-dist demo
"""


_SHELL = argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
_COMPLETION = {"completion": Command(print_completion, _SHELL)}
COMMANDS = dict(sorted({**train.COMMANDS, **look.COMMANDS, **_COMPLETION}.items()))
_OTHERS = {
    **dict.fromkeys(("train", "start", "launch", "resume", "continue"), "run"),
    **dict.fromkeys(("test", "evaluate", "measure"), "eval"),
    **dict.fromkeys(("show", "ui", "web", "open", "viewer", "dashboard", "list", "ls", "replay", "reproduce"), "view"),
    **dict.fromkeys(("status", "logs", "ps", "debug"), "why"),
    **dict.fromkeys(("-v", "-V"), "--version"),
    "install": "setup",
    "check": "doctor",
    "new": "init",
    "config": "settings",
    "keys": "settings",
}
"""What other tools call a command."""
_RESUMED = ("demo", "eval", "regrade", "run", "serve", "setup")
_AS_BEFORE = "python run.py --config-path config/multimachine --config-name host [key=value ...]   is the command run"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed, 2 wrong configuration or command, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    words += json.loads(os.environ.pop(WORDS, "[]"))
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if words and (words[0].startswith("--config-") or "=" in words[0]):
        words = ["run", *words]
    return exit_status(lambda: _execute(words), RESUMES if words[:1] and words[0] in _RESUMED else "")


def _execute(words: Sequence[str]) -> int:
    let_waiting_threads_sleep()
    end_without_a_search_for_garbage()
    if is_asked_by_a_shell():
        answer_the_shell(_parser_of_all())
    match words[:1]:
        case [] | ["-h"] | ["--help"] | ["help"]:
            print(_overview(), end="")
            return 0
        case ["--version"]:
            print(f"digirl-dist {digirl_dist.__version__}")
            return 0
        case [name] if name in COMMANDS:
            _refuse_nowhere()
            _refuse_homeless()
            return _executed(name, words[1:])
    return _refuse(words[0])


def _executed(name: str, words: Sequence[str]) -> int:
    """Raises SettingsError, with the command that installs it, where PyTorch is missing and the command needs it."""
    options = _parsed(COMMANDS[name].parser(name), words)
    try:
        return COMMANDS[name].execute(options)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            from digirl_dist.settings.extras import refuse_without_torch

            refuse_without_torch(f"digirl-dist {name}")
        raise


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Raises SettingsError for a flag that the command does not have, with the setting that it may mean."""
    options, unknown = parser.parse_known_intermixed_args(words)
    if not unknown:
        return options
    if not unknown[0].startswith("-") or not hasattr(options, "overrides"):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    from digirl_dist.settings.hints import flag

    following = words[list(words).index(unknown[0]) + 1 :][:1]
    value = next((each for each in following if not re.match("-|.*=", each)), "")
    meant = flag(unknown[0], value, re.findall(r"--[\w-]+", parser.format_usage()))
    raise SettingsError(f"{unknown[0]} is no option of {parser.prog}: {meant} (`{parser.prog} --help` shows all)")


def _refuse_nowhere() -> None:
    """Raises SettingsError in a working directory that was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise SettingsError("the working directory is no longer there: cd into one that is") from error


def _refuse_homeless() -> None:
    """Raises SettingsError where ``~`` means nothing."""
    if os.path.expanduser("~") == "~":
        raise SettingsError(f"HOME is not set, and user {os.getuid()} has no home: set HOME to a folder of yours")


def _refuse(word: str) -> int:
    from digirl_dist.plain_text import closest, nearest

    known = [*COMMANDS, "--help", "--version"]
    if meant := _OTHERS.get(closest(word, [*known, *_OTHERS])):
        raise SettingsError(f"there is no command {word!r} (`digirl-dist` alone shows all); did you mean {meant!r}?")
    raise SettingsError(f"there is no command {word!r} (`digirl-dist` alone shows all); {nearest(word, known)}")


def _overview() -> str:
    listed = "\n".join(f"  {name:<12} {command.summary}" for name, command in COMMANDS.items())
    return fitted(_OVERVIEW.format(version=digirl_dist.__version__, commands=listed, keys=often_used(), run=_AS_BEFORE))


def _parser_of_all() -> argparse.ArgumentParser:
    """Returns one parser of all commands, which only shells ask."""
    parser = argparse.ArgumentParser(prog="digirl-dist", add_help=False)
    parser.add_argument("--version", action="store_true")
    below = parser.add_subparsers()
    for name, command in COMMANDS.items():
        command.add_arguments(below.add_parser(name))
    return parser
