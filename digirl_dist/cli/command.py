"""The table of commands: each is one module of ``cli/commands``, found by its file name.

Such a module has a docstring, whose first line says what the command does, and two functions: ``add_arguments(parser)``
and ``execute(options)``, which returns the exit status and may raise a DigirlDistError. It imports nothing heavy at its
top, because the table imports all of them.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import shutil
import textwrap
from dataclasses import dataclass
from types import ModuleType

from digirl_dist.cli import commands
from digirl_dist.exit_status import Parser


@dataclass(frozen=True)
class Command:
    """One command, such as ``digirl-dist why``."""

    name: str
    module: ModuleType

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (self.module.__doc__ or "").splitlines()[0].rstrip(".")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.module.add_arguments(parser)

    def parser(self) -> argparse.ArgumentParser:
        about = self.module.__doc__
        parser = Parser(prog=f"digirl-dist {self.name}", description=about, formatter_class=_Help)
        self.add_arguments(parser)
        return parser

    def execute(self, options: argparse.Namespace) -> int:
        """Returns the exit status."""
        status: int = self.module.execute(options)
        return status


def names() -> list[str]:
    """Returns the names of all commands; imports none of them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def command(name: str) -> Command:
    return Command(name, importlib.import_module(f"{commands.__name__}.{name.replace('-', '_')}"))


def fitted(text: str, width: int | None = None) -> str:
    """Returns ``text`` in lines of ``width``, the terminal's if None; what follows two blanks keeps its column."""
    width = width or shutil.get_terminal_size().columns
    paragraphs = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    return "\n".join(_fitted(line, width) for line in paragraphs.split("\n"))


def _fitted(line: str, width: int) -> str:
    start = re.match(r" *\S.*?  +", line)
    column = start.end() if start and start.end() < width / 2 else len(line) - len(line.lstrip())
    indent = " " * column
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class _Help(argparse.RawDescriptionHelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fitted(text, width)
