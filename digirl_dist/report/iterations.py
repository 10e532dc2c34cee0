"""The report's sections from ``metrics.jsonl``: learning progress and the use of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from digirl_dist.report.charts import Series, binned, line_chart, stacked_bars, thinned
from digirl_dist.report.markup import element, section, short_number, shorten, small
from digirl_dist.report.record import number
from digirl_dist.report.task_table import success_by_task
from digirl_dist.types import Json

_PLACES = 150
"""Largest number of places in a chart; with more iterations, each place is the mean of several."""
_TABLE_ROWS = 200
_OPEN_ROWS = 12
_OWN_CHARTS = 18
_SHARE = (0.0, 1.0)

_COLUMNS = (
    ("iteration", "iteration"),
    ("episodes", "episodes"),
    ("success", "success_rate"),
    ("reward", "reward_mean"),
    ("best reward", "reward_max"),
    ("steps", "steps_mean"),
    ("entropy", "entropy"),
    ("policy", "policy_version"),
    ("collect s", "collect_s"),
    ("push s", "push_s"),
    ("update s", "update_s"),
    ("overhead s", "overhead_s"),
    ("iteration s", "iteration_s"),
    ("emulators busy", "emulator_busy"),
    ("… while collecting", "collect_busy"),
    ("pushed bytes", "push_bytes"),
    ("pulled bytes", "pull_bytes"),
    ("retried", "episodes_retried"),
    ("lost", "workers_lost"),
    ("policy behind", "staleness_mean"),
    ("too old", "too_old"),
    ("carried over", "carried_over"),
    ("cancelled", "cancelled"),
)
_LATE = ("carried_in", "carried_in_steps_mean", "carried_in_s_mean", "in_time_steps_mean", "in_time_s_mean")
_COMMON = {key for _, key in _COLUMNS} | {"time", "staleness_max", *_LATE}

Lines = Sequence[dict[str, Json]]


def iteration_sections(metrics: Lines) -> Iterator[Element]:
    """Yields the sections for ``metrics``, which holds one mapping per iteration, in order; none if it is empty."""
    if metrics:
        yield _learning(metrics)
        yield _time(metrics)
        yield from _closed_early(metrics)
        yield from _own_figures(metrics)
        yield _table(metrics)


def _learning(metrics: Lines) -> Element:
    success = _line(metrics, "success_rate", 1, "success rate")
    rewards = [_line(metrics, "reward_mean", 1, "mean"), _line(metrics, "reward_max", 2, "best")]
    charts = _charts(
        line_chart("Success rate", _labels(metrics), [success], _SHARE),
        line_chart("Reward of an episode", _labels(metrics), rewards),
        line_chart("Entropy of the policy, in nats", _labels(metrics), [_line(metrics, "entropy", 1, "entropy")]),
    )
    return section("Learning", charts, _binning(metrics), success_by_task(metrics))


def _time(metrics: Lines) -> Element:
    """Renders the parts of each iteration's seconds. The overhead is a line, because it overlaps the parts."""
    acting = [{"seconds": _difference(line, "collect_s", "push_s")} for line in metrics]
    other = [{"seconds": _difference(line, "iteration_s", "collect_s", "update_s")} for line in metrics]
    parts = [
        _line(acting, "seconds", 1, "episodes"),
        _line(metrics, "push_s", 2, "push"),
        _line(metrics, "update_s", 3, "update"),
        _line(other, "seconds", 4, "other"),
    ]
    overhead = _line(metrics, "overhead_s", 5, "overhead")
    busy = [
        _line(metrics, "emulator_busy", 1, "of the whole iteration"),
        _line(metrics, "collect_busy", 2, "while tickets were left"),
    ]
    charts = _charts(
        stacked_bars("Seconds of an iteration", _labels(metrics), parts, overhead),
        line_chart("Share of time the emulators were busy", _labels(metrics), busy, _SHARE),
    )
    hint = "Overhead: seconds in which neither the emulators nor the update ran."
    return section("Where the time went", charts, small(hint))


def _closed_early(metrics: Lines) -> Iterator[Element]:
    """Compares the episodes that iterations closed without with those in time; empty if no iteration closed early."""
    if not any(number(line.get(key)) for line in metrics for key in ("carried_over", "carried_in", "cancelled")):
        return
    charts = [
        line_chart("Left out of an iteration", _labels(metrics), _pair(metrics, "carried_over", "cancelled")),
        line_chart("Mean steps", _labels(metrics), _pair(metrics, "in_time_steps_mean", "carried_in_steps_mean")),
        line_chart("Mean seconds", _labels(metrics), _pair(metrics, "in_time_s_mean", "carried_in_s_mean")),
    ]
    hint = (
        "Episodes still running when an iteration closed were carried over and count in the next one (carried_in); "
        "episodes not yet started were cancelled. Carried episodes that are longer than those in time show what an "
        "iteration by itself would have missed."
    )
    yield section("Iterations that closed early", element("div", {"class": "charts three"}, *charts), small(hint))


def _pair(metrics: Lines, one: str, other: str) -> list[Series]:
    return [_line(metrics, one, 1, shorten(one, 40)), _line(metrics, other, 2, shorten(other, 40))]


def _own_figures(metrics: Lines) -> Iterator[Element]:
    keys = _own_keys(metrics)
    shown = [key for key in keys if sum(number(line.get(key)) is not None for line in metrics) > 1][:_OWN_CHARTS]
    if shown:
        charts = [_own_chart(metrics, key) for key in shown]
        yield section("The algorithm's figures", element("div", {"class": "charts three"}, *charts))


def _own_chart(metrics: Lines, key: str) -> Element:
    name = shorten(key, 60)
    return line_chart(name, _labels(metrics), [_line(metrics, key, 1, name)])


def _table(metrics: Lines) -> Element:
    columns = [*_COLUMNS, *((shorten(key, 40), key) for key in _own_keys(metrics))]
    columns = [column for column in columns if any(line.get(column[1]) is not None for line in metrics)]
    titles = element("tr", None, *(element("th", None, title) for title, _ in columns))
    rows = [_row(line, columns) for line in reversed(metrics[-_TABLE_ROWS:])]
    left_out = len(metrics) - len(rows)
    summary = f"{len(rows)} iterations, newest first" + (f" ({left_out} older left out)" if left_out else "")
    opened = {"open": "open"} if len(rows) <= _OPEN_ROWS else {}
    wide = element("div", {"class": "wide"}, element("table", None, titles, *rows))
    return section("Iterations", element("details", opened, element("summary", None, summary), wide))


def _charts(*charts: Element) -> Element:
    return element("div", {"class": "charts"}, *charts)


def _row(line: dict[str, Json], columns: Sequence[tuple[str, str]]) -> Element:
    return element("tr", None, *(element("td", None, short_number(line.get(key))) for _, key in columns))


def _line(metrics: Lines, key: str, colour: int, name: str) -> Series:
    bins = thinned(len(metrics), _PLACES)
    return Series(name, binned(bins, [number(line.get(key)) for line in metrics]), colour)


def _labels(metrics: Lines) -> list[str]:
    return [str(metrics[places[0]]["iteration"]) for places in thinned(len(metrics), _PLACES)]


def _binning(metrics: Lines) -> Element | None:
    size = len(thinned(len(metrics), _PLACES)[0])
    return small(f"Each place is the mean of {size} iterations." if size > 1 else "")


def _difference(line: dict[str, Json], whole: str, *parts: str) -> float | None:
    """Returns ``whole`` minus ``parts``, counting missing parts as zero."""
    left = number(line.get(whole))
    return None if left is None else max(0.0, left - sum(number(line.get(part)) or 0.0 for part in parts))


def _own_keys(metrics: Lines) -> list[str]:
    """Returns the algorithm's own figures, in the order in which they first appear."""
    keys = dict.fromkeys(key for line in metrics for key, value in line.items() if number(value) is not None)
    return [key for key in keys if key not in _COMMON]
