"""MLflow, on the server that MLFLOW_TRACKING_URI names; without one, in ``mlruns`` of the run folder."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from digirl_dist.report.loggers import LoggedRun, pictures, plain_names
from digirl_dist.types import Json, T

_TAG = "digirl_dist.run_id"
_AT_ONCE = 100
"""Parameters and metrics of one request; servers refuse more."""
_LONGEST = 500
"""Characters of a parameter."""


def build(_: str, run: LoggedRun) -> MLflow:
    return MLflow(run)


class MLflow:
    """Implements ``Logger``. A resumed run continues the run of its id, which is a tag there."""

    def __init__(self, run: LoggedRun) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            os.environ["MLFLOW_TRACKING_URI"] = (run.folder.absolute() / "mlruns").as_uri()
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(run.project)
        experiment = self._client.create_experiment(run.project) if found is None else found.experiment_id
        before = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.run_id}'", max_results=1)
        if before:
            self._id = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment, tags={_TAG: run.run_id}, run_name=run.name).info.run_id
            self._tell_config(run.config)

    def figures(self, figures: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for part in _parts([Metric(name, value, now, step) for name, value in figures.items()]):
            self._client.log_batch(self._id, metrics=part)

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            plain = [{key: value for key, value in row.items() if key != "picture"} for row in rows]
            table = Path(folder, f"{step:06d}.json")
            table.write_text(json.dumps({"columns": list(plain[0]), "data": [list(row.values()) for row in plain]}))
            for kind, png, _ in pictures(rows):
                Path(folder, f"{step:06d}-{kind}.png").write_bytes(png)
            self._client.log_artifacts(self._id, folder, "episodes")

    def close(self) -> str:
        self._client.set_terminated(self._id)
        return os.environ["MLFLOW_TRACKING_URI"]

    def _tell_config(self, config: dict[str, Json]) -> None:
        from mlflow.entities import Param

        plain = plain_names({(name,): value for name, value in config.items()})
        for part in _parts([Param(name, str(value)[:_LONGEST]) for name, value in plain.items()]):
            self._client.log_batch(self._id, params=part)


def _parts(entities: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(entities), _AT_ONCE):
        yield entities[start : start + _AT_ONCE]
