"""What a notebook and the report show of a stranger's run: its texts, whatever they are, and no markup of theirs."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hostile_texts import GENERATED, HOSTILE
from small_run import append, episode, figures, make_run

from digirl_dist import Run
from digirl_dist.report.bundle import write_report
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.storage import parquet

TEXTS = (*HOSTILE, *GENERATED)
ACTIVE = {"script", "iframe", "object", "embed", "base", "form", "math", "link", "a"}


class Markup(HTMLParser):
    """Collects what acts in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.active += [tag] if tag in ACTIVE else []
        for name, value in attrs:
            leads_away = name in ("href", "src", "srcdoc") and not (value or "").startswith("data:image/")
            self.active += [f"{tag} {name}"] if name.startswith("on") or leads_away else []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "hostile", iterations=1)
    told = [episode(1, at, at % 2 == 0, words=text) for at, text in enumerate(TEXTS)]
    parquet.write(folder / "trajectories" / "000001.parquet", told)
    append(folder / "metrics.jsonl", {**figures(1, told, 1.8e9), "success_by_task": {text: [1, 2] for text in TEXTS}})
    for text in TEXTS:
        append(folder / "events.jsonl", {"time": 1.8e9, "event": "worker_lost", "worker": text, "reason": text})
    return folder


@pytest.mark.component
def test_no_text_becomes_markup_in_a_notebook(hostile: Path) -> None:
    episodes = Run(hostile).episodes()
    assert Markup(episodes._repr_html_()).active == []
    shown = [Markup(one._repr_html_()) for one in list(episodes)[-len(TEXTS) :]]
    assert len(shown) == len(TEXTS) and [page.active for page in shown if page.active] == []
    assert all("".join(page.texts).strip() for page in shown)


def test_no_text_steers_the_terminal_that_shows_an_episode_or_a_warning(hostile: Path, tmp_path: Path) -> None:
    assert [str(one) for one in Run(hostile).episodes() if not repr(one).isprintable()] == []
    folder = make_run(tmp_path / "run", iterations=1)
    (folder / "trajectories" / "0\x1b[2J.parquet").write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match=r"0\\x1b\[2J\.parquet is not a trajectory file"):
        Run(folder).episodes()


def test_no_text_becomes_markup_in_the_report(hostile: Path) -> None:
    """Its own icon, link and scripts are all that acts: what a run says is in the first script, as data."""
    page = Markup(write_report(ViewedRun(hostile)).read_text())
    assert page.active == ["link", "link href", "a", "a href", "script", "script"]
    (data,) = (text for text in page.texts if text.startswith('{"hostile":'))
    assert "<" not in data and set(json.loads(data)["hostile"]["rows"]["columns"]["task"]["words"]) >= set(TEXTS)
    assert Markup("<p onclick=x><script>").active == ["p onclick", "script"], "what acts is found"
