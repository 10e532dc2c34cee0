"""Writes a run in the format of other tools: export runs/mine --to datasets mine_dataset.

Exports the training episodes of finished iterations; machines have numbers instead of names. The folder must be new.
"""

from __future__ import annotations

import argparse
import sys

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import printable
from digirl_dist.report.output import shown
from digirl_dist.settings.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from digirl_dist.export import names

    parser.add_argument("run", type=expanded, metavar="RUN", help="the run's folder, its save_path")
    parser.add_argument("destination", type=expanded, metavar="DEST", help="folder to write; it must not exist")
    parser.add_argument("--to", choices=names(), required=True, help="the format")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload it to this repository of the Hugging Face hub")
    parser.add_argument("--public", action="store_true", help="with --push: a new repository is public")


def execute(options: argparse.Namespace) -> int:
    if options.public and options.push is None:
        raise SettingsError("--public says who may read what is uploaded: add --push OWNER/NAME, or leave it out")
    with shown("export the run", sys.stderr) as progress:
        from digirl_dist.export import export
        from digirl_dist.export.hub import push, refuse_no_repository

        if options.push is not None:
            refuse_no_repository(options.push)
        written = export(options.run, options.to, options.destination)
        print(printable(str(written)))
        if options.push is not None:
            progress.status.host("upload to the hub")
            print(push(written, options.to, options.push, private=not options.public))
    return 0
