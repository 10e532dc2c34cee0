"""Reads run folders, even of a running run, and without its emulators, agents or workers."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.api import arguments
from digirl_dist.api.episodes import Episode, Episodes, html_table, import_pandas
from digirl_dist.errors import CheckpointError, TrajectoryError
from digirl_dist.judge import with_verdict
from digirl_dist.plain_text import as_unicode, one_line
from digirl_dist.report import metrics
from digirl_dist.report.output import redraws, shown
from digirl_dist.settings import regular_file
from digirl_dist.storage import json_lines
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.episode_index import EpisodeIndex
from digirl_dist.storage.run_folder import config_of, existing_run
from digirl_dist.storage.status import RunState, run_state
from digirl_dist.storage.verdicts import read as read_verdicts
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

if TYPE_CHECKING:
    import pandas
    import pyarrow
    import pyarrow.dataset

    from digirl_dist.api.explanation import Explanation
    from digirl_dist.api.policy import Policy

_SHOWN = ("success_rate", "reward_mean")


class Run:
    """Reads a run's folder (``save_path``). Every call reads the present state; nothing is written."""

    def __init__(self, folder: str | Path, trust: bool = False) -> None:
        """``trust`` lets ``policy`` and ``explain`` use the classes, models and servers that the folder names.

        Raises NoRunError for a folder in which no run began.
        """
        self.folder = existing_run(arguments.folder("folder", folder))
        self.trust = trust
        self.index = EpisodeIndex(self.folder)
        """Index of the episodes; refresh it to follow the run."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def state(self) -> RunState:
        """How the run stands: running, finished, interrupted or failed, with the reason."""
        return run_state(self.folder)

    def config(self) -> dict[str, Json]:
        """Returns the composed configuration with secrets hidden. Raises RunFolderError if it is damaged."""
        return config_of(self.folder)

    def figures(self) -> list[dict[str, Json]]:
        """Returns the figures of each iteration, in order; docs/run_folder.md explains them."""
        return metrics.lines_of(self.folder / "metrics.jsonl")

    def metrics(self) -> pandas.DataFrame:
        """Returns ``figures`` as a table with a row per iteration; before the first iteration, the columns that every
        run has."""
        return _frame(self.figures(), metrics.names())

    def evaluations(self) -> pandas.DataFrame:
        """Returns a table with a row per evaluation of a checkpoint."""
        return _frame(json_lines.read(self.folder / "evaluation.jsonl"), ("checkpoint", *metrics.measured(0, ())))

    def events(self) -> pandas.DataFrame:
        """Returns a table with a row per event of a worker, slot or transfer, of the newest 32 MiB of them."""
        return _frame(json_lines.read(self.folder / "events.jsonl"), ("time", "event", "worker"))

    def episodes(self, verdicts: str | None = None) -> Episodes:
        """Returns all episodes, including those of evaluations and of the current iteration.

        ``verdicts`` names those of ``digirl-dist regrade`` that shall stand in place of the first ones; episodes
        without one are left out. Warns about unreadable files.
        """
        self.index.refresh()
        for note in self.index.notes:
            warnings.warn(f"{one_line(note)}; what is in it is left out", stacklevel=2)
        table = self.index.table()
        if verdicts is None:
            return Episodes(table, self.index.read)
        import pyarrow

        given = read_verdicts(self.folder, arguments.of_kind("verdicts", verdicts, str, "their name"))
        keys: list[str] = table["key"].to_pylist()
        rows = [row for row, key in enumerate(keys) if key in given]
        scores = [given[keys[row]].score for row in rows]
        table = _with_columns(
            table.take(pyarrow.array(rows, "int64")), {"reward": scores, "success": [score >= 1 for score in scores]}
        )
        return Episodes(table, partial(_regraded, self.index, dict(zip(rows, scores, strict=True))), rows)

    def episode(self, key: str) -> Episode:
        """Returns one episode by its ``key`` (t12.5: ticket 5 of iteration 12). Raises TrajectoryError."""
        try:
            return Episode.of(self.index.read(self._row(key)))
        except KeyError as error:
            raise TrajectoryError(f"{self.folder} has no episode {key}") from error

    def _row(self, key: str) -> int:
        arguments.of_kind("key", key, str, "that of an episode, as 't12.5'")
        try:
            return self.index.find(key)
        except KeyError:
            self.index.refresh()  # a later iteration took it along
            return self.index.find(key)

    def steps(self) -> pyarrow.dataset.Dataset:
        """Returns the steps of all finished iterations, including screenshots, for Arrow, DuckDB and Polars.

        Nothing is read before you choose columns and rows. A run without finished iterations has the columns, but no
        row. Raises TrajectoryError if the first file is damaged; of the others, Arrow says so when it reads them.
        """
        import pyarrow.dataset

        from digirl_dist.storage import parquet

        files = sorted((self.folder / "trajectories").glob("[0-9]*.parquet"))
        try:
            names = [str(regular_file.checked(file)) for file in files]
            pyarrow.dataset.dataset(names[:1], format="parquet")
            return pyarrow.dataset.dataset(names, format="parquet", schema=parquet.SCHEMA)
        except (pyarrow.ArrowException, OSError) as error:
            raise TrajectoryError(f"{self.folder / 'trajectories'} cannot be read: {str(error)[:300]}") from error

    def checkpoints(self) -> list[int]:
        """Returns the policy versions whose checkpoints were kept."""
        return Checkpoints(self.folder / "checkpoints").iterations()

    def policy(self, version: int | None = None) -> Policy:
        """Returns the newest policy, or that of ``version``.

        Raises CheckpointError if it was not kept, UntrustedError as ``Policy.load``.
        """
        from digirl_dist.api.policy import Policy

        if version is not None:
            version = arguments.whole("version", version, 0)
        kept = self.checkpoints()
        if not kept or (version is not None and version not in kept):
            wanted = "no checkpoint" if version is None else f"no checkpoint {version}"
            raise CheckpointError(f"{self.folder} has {wanted}; kept are {', '.join(map(str, kept)) or 'none'}")
        checkpoint = Checkpoints(self.folder / "checkpoints").open(kept[-1] if version is None else version)
        return Policy.load(checkpoint, self.trust)

    def explain(self, episode: Episode | str, version: int | None = None) -> Explanation:
        """Returns what the acting policy (or ``version``) thought at each step, and what the update made of it.

        ``episode`` may be a key. Raises TrajectoryError for an unknown one.
        """
        from digirl_dist.api.explanation import explain

        if version is not None:
            version = arguments.whole("version", version, 0)
        wanted = "an episode of run.episodes(), or the key of one, as 't12.5'"
        found = self.episode(episode) if isinstance(episode, str) else episode
        return explain(self, arguments.of_kind("episode", found, Trajectory, wanted), version)

    def export(self, to: str, destination: str | Path, verdicts: str | None = None) -> Path:
        """Writes the training episodes (atif, datasets) or the newest policy (policy) for other tools.

        ``verdicts`` names those of ``digirl-dist regrade`` that shall stand in place of the first ones. Returns the
        folder. Raises SettingsError if it exists.
        """
        from digirl_dist.export import export

        with shown("export the run", sys.stderr if redraws(sys.stderr) else None) as progress:
            return export(self.folder, to, arguments.folder("destination", destination), verdicts, progress.status)

    def push_to_hub(self, repository: str, to: str = "datasets", private: bool = True) -> str:
        """Exports and uploads to a repository of the Hugging Face hub; returns the address of the commit.

        Raises HubError, and SettingsError for an invalid name.
        """
        from digirl_dist.export import push, refuse_no_repository

        refuse_no_repository(repository)
        with tempfile.TemporaryDirectory() as place:
            return push(self.export(to, Path(place) / "export"), to, repository, private, kept=False)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Shows in a notebook how the run stands."""
        lines = self.figures()
        known = {name: [line[name] for line in lines if isinstance(line.get(name), float)] for name in _SHOWN}
        rows = {name: f"{found[0]:.2f} → {found[-1]:.2f}" for name, found in known.items() if found}
        return html_table(repr(self), {"state": self.state, "iterations": len(lines), **rows})


def _regraded(index: EpisodeIndex, scores: Mapping[int, float], row: int) -> Trajectory:
    return with_verdict(index.read(row), scores[row])


def _with_columns(table: pyarrow.Table, columns: Mapping[str, Sequence[Json]]) -> pyarrow.Table:
    import pyarrow

    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pyarrow.array(values, table.schema.field(place).type))
    return table


def _frame(lines: Sequence[Mapping[str, Json]], columns: Iterable[str]) -> pandas.DataFrame:
    """Returns a row per line; without any, no row of these columns."""
    made = import_pandas().DataFrame
    try:
        frame: pandas.DataFrame = made(lines) if lines else made(columns=list(columns), dtype=float)
    except UnicodeEncodeError:  # pandas keeps texts in Arrow
        frame = made(
            [
                {as_unicode(key): as_unicode(each) if isinstance(each, str) else each for key, each in line.items()}
                for line in lines
            ]
        )
    return frame
