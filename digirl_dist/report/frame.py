"""The picture of a running command on a terminal of a given size: the host, the time left, one line per worker."""

from __future__ import annotations

import re
from collections import Counter

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from digirl_dist.plain_text import one_line
from digirl_dist.report.progress import Progress, duration
from digirl_dist.storage.status import WorkerStatus

_LINES_ABOVE = 6
"""Rows of the screen that are left to messages and to the host's own lines."""
_WIDE, _MIDDLE = 76, 46
"""Columns of a terminal that has room for troubles, and for speeds."""
_RECENT_S = 120.0


def frame(progress: Progress, width: int, height: int) -> RenderableType:
    """Returns what the terminal shows below the messages, at most ``height`` rows of ``width`` columns."""
    parts: list[RenderableType] = [_rule(progress, width), _host(progress)]
    if progress.status.round is not None:
        parts.append(_episodes(progress, width))
    if progress.status.workers and height > _LINES_ABOVE:
        parts += [Text(), _workers(progress, width, height - _LINES_ABOVE)]
    return Group(*parts[: max(1, height - 1)])


def _rule(progress: Progress, width: int) -> Text:
    """Names the run, and tells the time at the right."""
    left_s = progress.left_s()
    times = duration(progress.elapsed_s) + (f" · about {duration(left_s)} left" if left_s is not None else "")
    name = one_line(progress.name)
    if progress.iterations:
        name += f"  {progress.finished} of {progress.iterations} iterations"
    space = width - len(times) - 3
    shown = Text(name, "bold", no_wrap=True, overflow="ellipsis")
    shown.truncate(max(0, space), overflow="ellipsis")
    shown.append(" ")
    shown.append("─" * max(1, space - shown.cell_len + 1), "dim")
    shown.append(f" {times}", "cyan")
    shown.truncate(width, overflow="crop")
    return shown


def _host(progress: Progress) -> Text:
    status = progress.status
    text = Text("host  ", "dim", no_wrap=True, overflow="ellipsis")
    parts = [status.doing, None if status.round is None else status.round.name]
    text.append(one_line("; ".join(part for part in parts if part)), "default")
    text.append(f"  {duration(progress.ago_s(status.since_now))}", "cyan")
    if code := progress.users_code():
        text.append(f"  {one_line(code)}", "yellow")
    return text


def _episodes(progress: Progress, width: int) -> RenderableType:
    """Returns the bar of the collection under way."""
    round = progress.status.round
    assert round is not None
    rate = progress.success_rate
    told = f"{round.landed}/{round.wanted} episodes" + (f" · success {rate:.2f}" if rate is not None else "")
    line = Table.grid(padding=(0, 2))
    bar = ProgressBar(max(1, round.wanted), round.landed, width=max(4, min(40, width - len(told) - 10)))
    line.add_row(Text("      " if width >= _MIDDLE else ""), bar, Text(told, no_wrap=True, overflow="ellipsis"))
    return line


def _workers(progress: Progress, width: int, rows: int) -> RenderableType:
    """Returns the table, those that need attention first, and a line for the workers that do not fit."""
    workers = dict(progress.status.workers)
    names = sorted(workers, key=lambda name: (_order(workers[name], progress), _natural(name)))
    fit = len(names) if len(names) + 1 <= rows else max(1, rows - 2)
    with_speed = width >= _MIDDLE and any(worker.slots for worker in workers.values())
    with_trouble = width >= _WIDE and any(worker.last_trouble for worker in workers.values())
    wide = width if with_trouble else None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, width=wide)
    table.add_column("worker", no_wrap=True, max_width=24)
    table.add_column("now", no_wrap=True, overflow="ellipsis", min_width=min(24, width // 3), max_width=40)
    if with_speed:
        table.add_column("episodes/s", justify="right", no_wrap=True)
        table.add_column("busy", justify="right", no_wrap=True)
    if with_trouble:
        table.add_column("last trouble", no_wrap=True, ratio=1, overflow="ellipsis")
    for name in names[:fit]:
        cells = [Text(one_line(name)), _doing(workers[name], progress)]
        cells += _speed(name, workers[name], progress) if with_speed else []
        table.add_row(*cells, *([_trouble(workers[name], progress)] if with_trouble else []))
    if fit == len(names):
        return table
    return Group(table, _rest([workers[name] for name in names[fit:]], progress))


def _order(worker: WorkerStatus, progress: Progress) -> int:
    """Returns 0 for the lost, 1 for those on their way, 2 for those in trouble of late, 3 for the others."""
    if worker.lost:
        return 0
    if worker.heard_at is None:
        return 1
    return 2 if worker.troubled_at is not None and progress.ago_s(worker.troubled_at) < _RECENT_S else 3


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts w2 before w10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def _state(worker: WorkerStatus, progress: Progress) -> tuple[str, str]:
    """Returns what a worker does in one or two words, and their style."""
    if worker.lost:
        return worker.doing, "red"
    if worker.heard_at is None:
        return worker.doing, "yellow"
    if progress.status.round is None:
        return "waits for the host", "dim"
    if worker.at_work:
        return "runs episodes", "green"
    doing = Counter(str(slot.get("activity")) for slot in worker.slots).most_common(1)
    words = {"boot": "starts emulators", "push": "loads the policy", "closed": "has no emulator left"}
    return words.get(doing[0][0] if doing else "", "waits for tickets"), "yellow"


def _doing(worker: WorkerStatus, progress: Progress) -> Text:
    words, style = _state(worker, progress)
    text = Text(one_line(words), style, no_wrap=True, overflow="ellipsis")
    if style in ("red", "yellow"):
        text.append(f"  {duration(progress.ago_s(worker.since))}", "cyan")
    return text


def _speed(name: str, worker: WorkerStatus, progress: Progress) -> list[Text]:
    rate = progress.episodes_per_s(name)
    busy = f"{worker.at_work}/{len(worker.slots)}" if worker.slots and progress.status.round is not None else "–"
    return [Text("–" if rate is None else f"{rate:.2f}"), Text(busy)]


def _trouble(worker: WorkerStatus, progress: Progress) -> Text:
    if worker.troubled_at is None:
        return Text()
    ago = duration(progress.ago_s(worker.troubled_at))
    return Text.assemble((f"{ago} ago  ", "cyan"), (one_line(worker.last_trouble), "dim"))


def _rest(workers: list[WorkerStatus], progress: Progress) -> Text:
    doing = Counter(_state(worker, progress)[0] for worker in workers)
    told = ", ".join(f"{count} {one_line(words)}" for words, count in doing.most_common(3))
    return Text(f"and {len(workers)} more: {told}", "dim", no_wrap=True, overflow="ellipsis")
