"""Prints keys of the configuration, their defaults and their meaning: settings [WORD]."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="?", default="", help="only keys with this word in them, such as ssh or emulator.android"
    )
    parser.add_argument("--expert", action="store_true", help="only those that few runs have a reason to change")


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.settings.reference import sections

    for section in sections():
        rows = [row for row in section.rows if options.word in row.anchor and (row.expert or not options.expert)]
        if rows:
            print(f"# {section.title}")
        for row in rows:
            print(f"{row.key}  ({row.kind}; {row.default.strip('`')})\n    {' '.join(row.meaning.split())}")
    return 0
