"""The picture of a running command on a terminal of a given size: the host, the time left, and workers in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from digirl_dist.plain_text import one_line
from digirl_dist.report.progress import Progress, duration
from digirl_dist.storage.status import WorkerStatus

_LINES_ABOVE = 6
"""Rows of the screen that are left to messages and to the host's own lines."""
_RECENT_S = 120.0
_WELL = 3
"""The order of workers that need no attention."""


def frame(progress: Progress, width: int, height: int) -> RenderableType:
    """Returns what the terminal shows below the messages, at most ``height`` rows of ``width`` columns."""
    parts: list[RenderableType] = [_rule(progress, width), _host(progress)]
    if progress.status.round is not None:
        parts.append(_episodes(progress, width))
    if progress.status.workers and height > _LINES_ABOVE:
        parts += [Text(), *_workers(progress, height - _LINES_ABOVE)]
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
    line.add_row(Text("    "), bar, Text(told, no_wrap=True, overflow="ellipsis"))
    return line


def _workers(progress: Progress, rows: int) -> Iterator[Text]:
    """Yields what the workers do in one line, then a line for each that needs attention, the lost ones first."""
    workers = dict(progress.status.workers)
    doing = Counter(_state(worker, progress)[0] for worker in workers.values())
    told = ", ".join(f"{count} {one_line(words)}" for words, count in doing.most_common(3))
    yield Text(f"workers  {told}", no_wrap=True, overflow="ellipsis")
    troubled = [name for name in workers if _order(workers[name], progress) < _WELL]
    for name in sorted(troubled, key=lambda name: (_order(workers[name], progress), len(name), name))[: rows - 1]:
        yield _line(name, workers[name], progress)


def _line(name: str, worker: WorkerStatus, progress: Progress) -> Text:
    words, style = _state(worker, progress)
    text = Text(f"  {one_line(name)}  ", no_wrap=True, overflow="ellipsis")
    text.append(one_line(words), style)
    text.append(f"  {duration(progress.ago_s(worker.since))}", "cyan")
    if worker.troubled_at is not None:
        text.append(f"  {duration(progress.ago_s(worker.troubled_at))} ago: {one_line(worker.last_trouble)}", "dim")
    return text


def _order(worker: WorkerStatus, progress: Progress) -> int:
    """Returns 0 for the lost, 1 for those on their way, 2 for those in trouble of late, 3 for the others."""
    if worker.lost:
        return 0
    if worker.heard_at is None:
        return 1
    return 2 if worker.troubled_at is not None and progress.ago_s(worker.troubled_at) < _RECENT_S else _WELL


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
