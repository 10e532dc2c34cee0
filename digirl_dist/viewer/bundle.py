"""Runs as one file that any browser opens: the page, its scripts and the data, and nothing requested from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from digirl_dist.api.episodes import Episodes
from digirl_dist.api.run import Run
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.report.picture import embed
from digirl_dist.settings.paths import PathUse, refuse_unwritable
from digirl_dist.storage import atomic_files
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json
from digirl_dist.viewer.data import STATIC, ViewedRun, clean, named, observations

EPISODES = 60
"""Episodes of each run whose steps and pictures are in the file; the list has all of them."""

_SCRIPTS = ("dom", "source", "index", "route", "charts", "screen")
_VIEWS = ("overview", "episodes", "episode", "tasks", "workers", "app")
_ALL_OF = re.compile(r'^import \* as (\w+) from "\./(\w+)\.js";', re.MULTILINE)
_SOME_OF = re.compile(r'^import (\{[^}]+\}) from "\./(\w+)\.js";', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


def write_bundle(runs: Sequence[Run], path: Path) -> Path:
    """Writes ``path``: .html, or .zip with the page in it; all of it or nothing.

    Raises SettingsError for another suffix or place, and RunFolderError if it cannot be written.
    """
    if path.suffix not in (".html", ".zip"):
        raise SettingsError(f"--bundle {path}: the file ends in .html or .zip")
    refuse_unwritable("--bundle", path, PathUse.file)
    page = bundle(runs)
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


def bundle(runs: Sequence[Run]) -> str:
    """Returns the page. Explanations need a server, which computes them."""
    viewed = named(runs)
    content: dict[str, Json] = {"runs": [], "rows": {}, "timelines": {}, "episodes": {}, "images": {}}
    for name, run in viewed.items():
        run.follow(everything=True)
        content["runs"].append({**run.summary(), "running": False})
        content["rows"][name], content["timelines"][name] = run.rows(0), run.timeline()
        chosen = _chosen(run)
        content["episodes"][name] = {key: run.episode(key) for key in chosen}
        content["images"][name] = {key: _pictures(one) for key, one in chosen.items()}
    return _page(json.dumps(clean(content), separators=(",", ":")).replace("<", "\\u003c"))


def _chosen(viewed: ViewedRun) -> dict[str, Trajectory]:
    """Returns episodes from the whole run, evenly."""
    episodes = Episodes(viewed.run.index.table(), viewed.run.index.read)  # the page tells of unreadable files
    keys = episodes.table["key"].to_pylist()
    count = min(EPISODES, len(keys))
    places = sorted({round(place * (len(keys) - 1) / max(1, count - 1)) for place in range(count)})
    return {keys[place]: episodes[place] for place in places}


def _pictures(one: Trajectory) -> list[str]:
    found = [embed(each.image) if each.image is not None else None for each in observations(one)]
    return ["" if each is None else each.uri for each in found]


def _page(data: str) -> str:
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
