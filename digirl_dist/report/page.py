"""``report.html``: one page without network access or scripts that shows a run's progress and its agent's episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element

from digirl_dist.report.episodes import STEPS, episode
from digirl_dist.report.iterations import iteration_sections
from digirl_dist.report.markup import element, section, short_number, shorten, small, to_html
from digirl_dist.report.record import RunRecord, number
from digirl_dist.storage import atomic_files
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_EVENTS = 20

Lines = Sequence[dict[str, Json]]


def write_page(run_folder: Path, episodes: int = 12) -> Path:
    """Writes ``report.html`` from the run folder's current content, with up to ``episodes`` episodes of the newest
    iteration. The page mentions files that are missing, incomplete or foreign. Raises OSError if the page itself cannot
    be written."""
    record = RunRecord.read(run_folder, episodes)
    name = run_folder.resolve().name
    page = files("digirl_dist.report").joinpath("page.html").read_text(encoding="utf-8")
    page = page.replace("<!-- title -->", to_html(element("title", None, f"{name}: digirl_dist")))
    page = page.replace("<!-- content -->", to_html(_content(name, record)))
    path = run_folder / "report.html"
    atomic_files.write_text(path, page)
    return path


def _content(name: str, record: RunRecord) -> Element:
    return element(
        "main",
        None,
        _heading(name, record),
        *_notes(record),
        *iteration_sections(record.metrics),
        *_events(record.events),
        _episodes(record.trajectories),
    )


def _heading(name: str, record: RunRecord) -> Element:
    facts = [element("span", None, f"{title} ", element("b", None, fact)) for title, fact in _facts(record)]
    tiles = [
        element("div", None, element("dt", None, title), element("dd", None, figure))
        for title, figure in _newest(record.metrics, record.config.get("train_iterations"))
    ]
    parts = [element("h1", None, name), element("p", {"class": "facts"}, *facts)]
    return element("header", None, *parts, element("dl", {"class": "tiles"}, *tiles) if tiles else None)


def _newest(metrics: Lines, planned: Json) -> Iterator[tuple[str, str]]:
    """Yields the run's progress and the figures of its newest iteration."""
    if metrics:
        newest = metrics[-1]
        yield "iterations", f"{len(metrics)} of {short_number(planned)}" if planned else str(len(metrics))
        yield "episodes", str(sum(int(number(line.get("episodes")) or 0) for line in metrics))
        yield "success rate", short_number(newest.get("success_rate"))
        yield "mean reward", short_number(newest.get("reward_mean"))
        yield "emulators busy, of all time", short_number(newest.get("emulator_busy"))
        yield "seconds an iteration", short_number(newest.get("iteration_s"))


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yields the facts that characterise the run."""
    yield "state", shorten(str(record.state), 300)
    emulator = _emulator(record.config.get("emulator"))
    if emulator:
        yield "emulator", shorten(emulator, 120)
    for title, key in (("algorithm", "train_algorithm"), ("emulators on each worker", "bsize"), ("seed", "seed")):
        if record.config.get(key) is not None:
            yield title, short_number(record.config[key])
    names = _workers(record)
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield "workers" if len(names) > 1 else "worker", shorten(", ".join(names[:4]), 200) + more
    updated = _clock(record.metrics[-1].get("time")) if record.metrics else ""
    if updated:
        yield "as of", updated


def _emulator(emulator: Json) -> str:
    named = emulator if isinstance(emulator, dict) else {"name": emulator}
    return next((str(named[key]) for key in ("name", "id", "task", "entry_point") if named.get(key)), "")


def _workers(record: RunRecord) -> list[str]:
    """Returns the names of the workers in the newest iteration."""
    shares = record.metrics[-1].get("episodes_by_worker") if record.metrics else None
    return sorted(map(str, shares) if isinstance(shares, dict) else {one.worker for one in record.trajectories})


def _notes(record: RunRecord) -> Iterator[Element]:
    for note in record.notes:
        yield element("p", {"class": "note"}, shorten(note, 400))
    if not record.metrics:
        yield element("p", {"class": "note"}, "No iteration has been finished yet.")


def _events(events: Lines) -> Iterator[Element]:
    told = list(_trouble(events))
    rows = [element("tr", None, *(element("td", None, cell) for cell in cells)) for cells in reversed(told[-_EVENTS:])]
    left_out = len(told) - len(rows)
    summary = f"The newest {len(rows)}; {left_out} older left out." if left_out else ""
    content = element("div", {"class": "wide"}, element("table", {"class": "text"}, *rows))
    yield section("Workers", content if rows else small("No worker and no episode was lost."), small(summary))


def _trouble(events: Lines) -> Iterator[tuple[str, str, str, str]]:
    """Yields time, worker, description and reason of each event that a person should know of."""
    lost: set[str] = set()
    for event in events:
        worker = shorten(str(event.get("worker", "")), 60)
        place = f"{worker} / slot {event['slot']}" if "slot" in event else worker
        when = _clock(event.get("time"))
        why = " → ".join(shorten(str(event[key]), 300) for key in ("reason", "remedy") if event.get(key))
        match event.get("event"):
            case "worker_lost":
                lost.add(worker)
                yield when, place, "lost", why
            case "worker_joined" if worker in lost:
                lost.remove(worker)
                yield when, place, "back again", ""
            case "episode_retried":
                yield when, place, f"episode {event.get('ticket', '')} retried", why
            case "slot" if event.get("state") == "closed":
                yield when, place, "emulator out of service", why


def _episodes(episodes: Sequence[Trajectory]) -> Element:
    if not episodes:
        return section("Episodes", small("No episode is in the run folder yet."))
    hint = (
        f"{len(episodes)} episodes of iteration {episodes[0].ticket.iteration}, of longer ones {STEPS} steps. "
        "All of the iteration's are in trajectories/."
    )
    return section("Episodes", small(hint), *map(episode, episodes))


def _clock(value: Json) -> str:
    seconds = number(value)
    if seconds is None or not 0 <= seconds < 2**33:
        return ""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
