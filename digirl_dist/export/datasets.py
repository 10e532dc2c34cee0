"""A data set of the Hugging Face hub: Parquet with visible screenshots, and its card.

``datasets.load_dataset(FOLDER)`` reads it, and so does ``offline.data=[FOLDER/data]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from digirl_dist.export.cards import Tally, dataset_card
from digirl_dist.export.source import Source
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Trajectory


def write(source: Source, folder: Path) -> None:
    """Writes one file for each iteration; raises TrajectoryError for a damaged one."""
    (folder / "data").mkdir()
    tally: Tally = {}
    steps: list[int] = []

    def counted(episodes: Iterator[Trajectory]) -> Iterator[Trajectory]:
        for each in episodes:
            count, won = tally.get(each.ticket.task.id, (0, 0))
            tally[each.ticket.task.id] = (count + 1, won + each.success)
            steps.append(len(each.steps))
            yield each

    for number, file in enumerate(source.files):
        parquet.write(folder / "data" / f"train-{number:05d}.parquet", counted(source.episodes(file)))
    (folder / "README.md").write_text(dataset_card(source, tally, sum(steps)), "utf-8")
