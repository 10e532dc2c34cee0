"""A data set of the Hugging Face hub: Parquet with visible screenshots, and its card.

``datasets.load_dataset(FOLDER)`` reads it, and so does ``offline.data=[FOLDER/data]``.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.export.cards import Tally, dataset_card
from digirl_dist.export.hub_schema import pictures, with_hub_features
from digirl_dist.export.source import Source
from digirl_dist.storage import parquet

_AT_ONCE = 32
"""Episodes of one row group."""
_SEEN = ("text", "image", "vector")


def write(source: Source, folder: Path) -> None:
    """Writes one file for each iteration; raises TrajectoryError for a damaged one."""
    (folder / "data").mkdir()
    tally: Tally = {}
    rows = 0
    schema = with_hub_features(_flattened(parquet.SCHEMA.empty_table()).schema)
    for number, file in enumerate(source.files()):
        episodes = source.episodes(file)
        with pq.ParquetWriter(folder / "data" / f"train-{number:05d}.parquet", schema, compression="zstd") as writer:
            while some := list(islice(episodes, _AT_ONCE)):
                table = _flattened(pa.concat_tables([parquet.to_table(each) for each in some]))
                writer.write_table(table.replace_schema_metadata(schema.metadata))
                rows += table.num_rows
                for each in some:
                    count, won = tally.get(each.ticket.task.id, (0, 0))
                    tally[each.ticket.task.id] = (count + 1, won + each.success)
    (folder / "README.md").write_text(dataset_card(source, tally, rows), "utf-8")


def _flattened(rows: pa.Table) -> pa.Table:
    """Returns the rows with a column for each part of the observations: the hub shows pictures of columns alone."""
    for name, prefix in (("observation", ""), ("final_observation", "final_")):
        place, parts = rows.schema.get_field_index(name), rows[name].combine_chunks().flatten()
        rows = rows.remove_column(place)
        for offset, (part, column) in enumerate(zip(_SEEN, parts, strict=True)):
            shown = pictures(column) if part == "image" else column
            rows = rows.add_column(place + offset, f"{prefix}{part}", shown)
    return rows
