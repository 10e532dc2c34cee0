"""The report's table of success per task over the course of a run."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from digirl_dist.report.charts import thinned
from digirl_dist.report.markup import element, shorten
from digirl_dist.types import Json

_COLUMNS = 12
_ROWS = 300

Count = tuple[int, int]
"""Successes and episodes."""


def success_by_task(metrics: Sequence[dict[str, Json]]) -> Element | None:
    """Renders a row per task, the ones that do worst lately first, and a column for every few iterations.

    None without figures. What is no count is passed over.
    """
    bins = thinned(len(metrics), _COLUMNS)
    parts = [_added([_counts(line) for line in metrics[places.start : places.stop]]) for places in bins]
    tasks = dict.fromkeys(task for part in parts for task in part)
    if not tasks:
        return None
    rows = sorted(tasks, key=lambda task: (_latest(parts, task), task))
    labels = [str(metrics[places.start].get("iteration")) for places in bins]
    titles = element(
        "tr", None, *(element("th", None, title) for title in ("task", *(f"from {one}" for one in labels)))
    )
    drawn = [element("tr", None, element("td", None, shorten(task, 60)), *_cells(parts, task)) for task in rows[:_ROWS]]
    found = sum(any(part.get(task, (0, 0))[0] for part in parts) for task in tasks)
    summary = f"Success per task, worst first: {found} of {len(tasks)} tasks succeeded at least once"
    table = element("div", {"class": "wide"}, element("table", None, titles, *drawn))
    return element("details", None, element("summary", None, summary), table)


def _counts(line: dict[str, Json]) -> dict[str, Count]:
    content = line.get("success_by_task")
    pairs = content.items() if isinstance(content, dict) else ()
    return {task: (count[0], count[1]) for task, count in pairs if _is_count(count)}


def _is_count(value: Json) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each < 2**53 for each in value)
    )


def _added(counts: Sequence[dict[str, Count]]) -> dict[str, Count]:
    total: dict[str, Count] = {}
    for count in counts:
        for task, (successes, episodes) in count.items():
            before = total.get(task, (0, 0))
            total[task] = before[0] + successes, before[1] + episodes
    return total


def _latest(parts: Sequence[dict[str, Count]], task: str) -> float:
    successes, episodes = next(part[task] for part in reversed(parts) if task in part)
    return successes / max(1, episodes)


def _cells(parts: Sequence[dict[str, Count]], task: str) -> list[Element]:
    told = [f"{part[task][0]}/{part[task][1]}" if task in part else "" for part in parts]
    return [element("td", {"class": "good"} if task in part and part[task][0] else None, cell)
            for part, cell in zip(parts, told, strict=True)]  # fmt: skip
