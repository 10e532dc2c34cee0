"""Shows runs in the browser: curves side by side, every episode step by step, tasks and workers over time.

Serves the pages on a loopback port of this machine; the printed address contains a token. From another machine: ssh -L
8765:127.0.0.1:8765 THIS_MACHINE, with --port 8765 here.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.cli.configured import add_trust
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import printable
from digirl_dist.report.output import shown
from digirl_dist.settings.paths import expanded

if TYPE_CHECKING:
    from digirl_dist.api.run import Run
    from digirl_dist.viewer.server import Viewer

_M_MMAP_THRESHOLD = -3
"""mallopt(3)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", type=expanded, metavar="RUN", help="run folders, or folders of them (default: runs/)"
    )
    parser.add_argument("--port", type=int, help="port on 127.0.0.1 (default: a free one)")
    add_trust(parser)
    parser.add_argument(
        "--bundle", type=expanded, metavar="FILE", help="write one file (.html or .zip) that needs no server, and exit"
    )


def execute(options: argparse.Namespace) -> int:
    if options.bundle is not None:
        if options.port is not None:
            raise SettingsError(f"--port {options.port} is for the viewer, which --bundle does without: leave one out")
        with shown("write the file", sys.stderr):
            from digirl_dist.viewer.bundle import write_bundle

            written = write_bundle(_runs(options), options.bundle)
        print(printable(str(written)))
        return 0
    with shown("start the viewer", sys.stderr):
        viewer = _viewer(options)
        _return_memory_at_once()
    print(f"open {viewer.url}\nCtrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt):
        viewer.serve()
    return 0


def _viewer(options: argparse.Namespace) -> Viewer:
    from digirl_dist.settings.extras import extra_needed

    runs = _runs(options)
    with extra_needed("digirl-dist view", "Starlette and uvicorn", "view"):
        from digirl_dist.viewer.server import Viewer
    try:
        return Viewer(runs, options.port or 0)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"--port {options.port} cannot be used: {error}; 0 takes a free one") from error


def _runs(options: argparse.Namespace) -> list[Run]:
    from digirl_dist.api.run import Run

    return [Run(run, options.trust) for folder in options.runs or [Path("runs")] for run in _runs_in(folder)]


def _return_memory_at_once() -> None:
    """Else each thread keeps what the largest file took that it ever read."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)


def _runs_in(folder: Path) -> list[Path]:
    """Returns the folder if it is a run's, or else the runs in it. Raises NoRunError if there is none."""
    from digirl_dist.errors import NoRunError
    from digirl_dist.storage.run_folder import existing_run, runs_in

    try:
        return [existing_run(folder)]
    except NoRunError:
        if found := runs_in(folder):
            return found
        raise
