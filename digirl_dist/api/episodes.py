"""Episodes: a table of all of them, and each one with its screenshots."""

from __future__ import annotations

import base64
import html
import importlib
import io
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, SupportsIndex, overload

import numpy as np
import pyarrow as pa
from PIL import Image

from digirl_dist.api import arguments
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import one_line
from digirl_dist.report.picture import SHOWN_FORMATS, film
from digirl_dist.report.viewed import caption
from digirl_dist.trajectory import Trajectory

if TYPE_CHECKING:
    import pandas

_MOST_STEPS = 100
"""Whose actions a notebook shows."""


class Episode(Trajectory):
    """One episode: ``ticket`` (task, seed, iteration), ``steps``, ``success``, ``reward``, ``worker``, and pictures."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Episode:
        return cls(**vars(trajectory))

    @property
    def images(self) -> list[Image.Image]:
        """The screenshots, ending with the one after the last step; empty for an agent that sees none."""
        images = (each.image for each in self.observations if each.image is not None)
        return [Image.open(io.BytesIO(image), formats=SHOWN_FORMATS) for image in images]

    def __repr__(self) -> str:
        task, end = self.ticket.task, "success" if self.success else "failure"
        where = f"iteration {self.ticket.iteration}, worker {one_line(self.worker):.100}"
        return f"<{end} at {task.id!r:.100} in {len(self.steps)} steps, reward {self.reward:g}, {where}>"

    def _repr_html_(self) -> str:
        """Shows the screenshots in a notebook, with touches drawn on them, and the actions. All texts are escaped."""
        strip = film(self)
        picture = "" if strip is None else f'<img src="data:image/png;base64,{base64.b64encode(strip).decode()}">'
        texts = [repr(self), *(f"{at}: {caption(step.action)}" for at, step in enumerate(self.steps[:_MOST_STEPS]))]
        plain = [_inert(text) for text in texts]
        return f"<p>{'✓' if self.success else '✗'} {plain[0]}</p>{picture}<p>{'<br>'.join(plain[1:])}</p>"


class Episodes(Sequence[Episode]):
    """Episodes in the order in which they were found. ``table`` has a row for each; screenshots are read on demand.

    Columns: purpose, iteration, ticket, worker, slot, policy_version, task, instruction, seed, steps, reward (the
    undiscounted return), success, truncated, key. Episodes of a run also have time (Unix seconds), attempt, and trouble
    (why it had to run again).
    """

    def __init__(self, table: pa.Table, read: Callable[[int], Trajectory], rows: Sequence[int] | None = None) -> None:
        self.table = table
        """A pyarrow.Table."""
        self._read = read
        self._rows = range(table.num_rows) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Episode: ...
    @overload
    def __getitem__(self, place: slice) -> Episodes: ...
    def __getitem__(self, place: int | slice) -> Episode | Episodes:
        """Returns one episode with all its steps, or a slice of episodes. Raises IndexError, TrajectoryError."""
        if isinstance(place, slice):
            return self.take(range(len(self))[place])
        arguments.of_kind("place", place, SupportsIndex, "a whole number or a slice")
        if not -len(self) <= operator.index(place) < len(self):
            raise IndexError(f"there is no episode {place}: there are {len(self)}")
        return Episode.of(self._read(self._rows[place]))

    def __iter__(self) -> Iterator[Episode]:
        return (self[place] for place in range(len(self)))

    def take(self, places: Sequence[int] | Sequence[bool] | np.ndarray) -> Episodes:
        """Returns the episodes at these positions (for a selection of ``to_pandas()``, its ``index``), or of a mask.

        Raises IndexError for an invalid position or a mask of another length, TypeError for anything else.
        """
        given = np.asarray(places)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
            raise TypeError(
                "places must be a list of numbers or a mask, as episodes.to_pandas().query('success').index, "
                f"not {places!r:.80}"
            )
        if given.dtype == bool and given.shape != (len(self),):
            raise IndexError(f"the mask has {len(given)} values for {len(self)} episodes")
        if given.size and given.dtype != bool and not 0 <= int(given.min()) <= int(given.max()) < len(self):
            raise IndexError(f"there are {len(self)} episodes, from 0 on: places are {given.min()} to {given.max()}")
        chosen: list[int] = (np.flatnonzero(given) if given.dtype == bool else given.astype(np.int64)).tolist()
        return Episodes(
            self.table.take(pa.array(chosen, pa.int64())), self._read, [self._rows[each] for each in chosen]
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the table as a DataFrame. Raises SettingsError if pandas is not installed."""
        import_pandas()
        return self.table.to_pandas()

    def _repr_html_(self) -> str:
        return str(self.to_pandas()._repr_html_())

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {sum(self.table['success'].to_pylist())} of them successful>"


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Returns what a notebook shows of a thing: names and values. All texts are escaped."""
    lines = [f"<tr><th>{_inert(name)}</th><td>{_inert(str(value))}</td></tr>" for name, value in rows.items()]
    return f"<b>{_inert(title)}</b><table>{''.join(lines)}</table>"


def _inert(text: str) -> str:
    return html.escape(one_line(text)).encode("ascii", "xmlcharrefreplace").decode()


def import_pandas() -> ModuleType:
    """Raises SettingsError, naming the remedy, if pandas is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise SettingsError("tables need pandas: pip install 'digirl_dist[data]'") from error
