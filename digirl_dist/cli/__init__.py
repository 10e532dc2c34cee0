"""The command line: one module per group of commands."""

from __future__ import annotations

import sys


def entry() -> int:
    """Returns the exit status of the command line; Ctrl-C is one line from its first import on."""
    try:
        from digirl_dist.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
