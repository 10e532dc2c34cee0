"""Runs as one file that any browser opens: the viewer's page, its scripts, and the answers to what it asks for.

``report.html`` of a run folder is such a file. Nothing is requested from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from digirl_dist.errors import RunFolderError, SettingsError, TrajectoryError
from digirl_dist.report.picture import embed
from digirl_dist.report.viewed import ViewedRun, clean, named
from digirl_dist.settings.paths import PathUse, refuse_unwritable
from digirl_dist.storage import atomic_files
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

STATIC = files("digirl_dist.report").joinpath("static")
"""The page, its style and its scripts."""

_EPISODES = 60
"""Episodes of each run whose steps and pictures are in a file of runs; the list has all of them."""
PAGE_BYTES = 1 << 22
"""Of the newest lines of metrics, measurements and events of a run, which are decoded at once."""
_NEWEST, _NEWEST_ROWS = 12, 20_000
"""Episodes whose steps and pictures are in a report, and those in its list."""

_SCRIPTS = ("dom", "source", "index", "route", "charts", "figures", "events", "screen")
_VIEWS = ("run", "overview", "episodes", "episode", "tasks", "workers", "app")
_ALL_OF = re.compile(r'^import \* as (\w+) from "\./(\w+)\.js";', re.MULTILINE)
_SOME_OF = re.compile(r'^import (\{[^}]+\}) from "\./(\w+)\.js";', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)

Choose = Callable[[ViewedRun, int], Sequence[str]]
"""Returns the keys of some of the episodes from a row of the index on."""


def write_bundle(folders: Sequence[Path], path: Path) -> Path:
    """Writes ``path``: .html, or .zip with the page in it; all of it or nothing.

    Raises SettingsError for another suffix or place, and RunFolderError if it cannot be written.
    """
    if path.suffix not in (".html", ".zip"):
        raise SettingsError(f"--bundle {path}: the file ends in .html or .zip")
    refuse_unwritable("--bundle", path, PathUse.file)
    page = _page({name: _answers(run, _evenly) for name, run in named(folders, most_bytes=PAGE_BYTES).items()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".zip":
            _write_zip(page, path)
        else:
            atomic_files.write_text(path, page, flushed=False)
    except OSError as error:
        raise RunFolderError(f"--bundle {path} cannot be written: {error.strerror}") from error
    return path


def _write_zip(page: str, path: Path) -> None:
    with (
        atomic_files.appearing(path, flushed=False) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("index.html", page)


def write_report(run: ViewedRun) -> Path:
    """Writes ``report.html`` into the run's folder, with some of its newest episodes. Raises OSError."""
    path = run.folder / "report.html"
    atomic_files.write_text(path, _page({run.name: _answers(run, _newest, _NEWEST_ROWS)}))
    return path


def _answers(run: ViewedRun, choose: Choose, rows: int | None = None) -> dict[str, Json]:
    """Returns what a server would answer about a run: all but explanations, of episodes those that are chosen."""
    run.follow(everything=True)
    table = run.rows(0 if rows is None else max(0, len(run.index) - rows))
    told, episodes, images = json.loads(run.news("", "", "")), {}, {}
    for key in choose(run, table["first"]):
        with suppress(KeyError, TrajectoryError):  # the page names files that cannot be read
            episodes[key], images[key] = run.episode(key), _pictures(run.read(key))
    told["state"]["written"] = time.time()  # nothing comes after
    table |= {"first": 0, "cut": table["first"]}
    timeline, status = json.loads(run.timeline_news("", "")), run.status()
    return {
        "run": told,
        "rows": table,
        "timeline": timeline,
        "status": status,
        "episode": episodes,
        "images": images,
    }


def _evenly(run: ViewedRun, first: int) -> list[str]:
    keys = run.index.table(first)["key"].to_pylist()
    count = min(_EPISODES, len(keys))
    return [keys[place] for place in sorted({round(k * (len(keys) - 1) / max(1, count - 1)) for k in range(count)})]


def _newest(run: ViewedRun, first: int) -> list[str]:
    """Returns episodes of the newest iteration, half of them failures and half successes if there are as many."""
    rows = run.index.table(first).select(["key", "iteration", "success"]).to_pylist()
    last = max((row["iteration"] for row in rows), default=0)
    newest = [row for row in rows if row["iteration"] == last]
    failed, succeeded = ([row["key"] for row in newest if row["success"] is won] for won in (False, True))
    successes = min(len(succeeded), max(_NEWEST // 2, _NEWEST - len(failed)))
    return [*failed[: _NEWEST - successes], *succeeded[:successes]]


def _pictures(one: Trajectory) -> list[str]:
    return ["" if each.image is None else embed(each.image) for each in one.observations]


def _page(runs: Mapping[str, Json]) -> str:
    data = json.dumps(clean(runs), separators=(",", ":")).replace("<", "\\u003c")
    style, script = STATIC.joinpath("style.css").read_text("utf-8"), _script()
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n<style>{style}</style>'
    page = STATIC.joinpath("index.html").read_text("utf-8")
    page = page.replace('<link rel="stylesheet" href="static/style.css">', head)
    page = page.replace('<script type="module" src="static/app.js"></script>\n', "")
    last = f'<script type="application/json" id="bundle">{data}</script>\n<script>{script}</script>\n</body>'
    return page.replace("</body>", last)


def _script() -> str:
    """Returns the modules in one script: each is a function whose exports the later ones find by its name."""
    made = ['"use strict";', "const modules = {};"]
    for name in (*_SCRIPTS, *_VIEWS):
        body = STATIC.joinpath(f"{name}.js").read_text("utf-8")
        exports = ", ".join(_EXPORTED.findall(body))
        body = _SOME_OF.sub(r"const \1 = modules.\2;", _ALL_OF.sub(r"const \1 = modules.\2;", body))
        body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
        made.append(f"modules.{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();")
    return "\n".join(made)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
