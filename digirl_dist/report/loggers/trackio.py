"""trackio: a local database, in TRACKIO_DIR if that is set, or the server or Space that its variables name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from digirl_dist.report.loggers import LoggedRun, panels
from digirl_dist.types import Json

PACKAGE = "trackio"
ISOLATED = True

_COLUMNS = ("iteration", "ticket", "task", "success", "reward", "steps", "worker", "policy_version")


def build(run: LoggedRun) -> Trackio:
    return Trackio(run)


class Trackio:
    """Implements ``Logger``. A resumed run continues its curves."""

    def __init__(self, run: LoggedRun) -> None:
        import trackio

        self._trackio: Any = trackio
        name = f"{run.name}-{run.run_id}"
        self._run = trackio.init(run.project, name=name, config=run.config, resume="allow", embed=False)

    def figures(self, figures: dict[str, float], step: int) -> None:
        self._trackio.log(figures, step=step)

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        self._trackio.log(panels(rows, _COLUMNS, self._trackio.Image, self._trackio.Table), step=step)

    def close(self) -> None:
        self._trackio.finish()
