"""Prints shell completion of commands and keys: eval "$(digirl-dist completion bash)", or zsh, fish."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")


def execute(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["digirl-dist"], shell=options.shell))
    return 0
