"""Weights & Biases, and trackio, which has its interface.

The key comes from WANDB_API_KEY or ``wandb login``; WANDB_MODE=offline writes to the run folder. trackio writes to a
local database, in TRACKIO_DIR if that is set, or to the server or Space that its variables name.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from digirl_dist.report.loggers import LoggedRun, pictures
from digirl_dist.types import Json

_COLUMNS = ("iteration", "ticket", "task", "instruction", "success", "reward", "steps", "worker", "policy_version")


def build(name: str, run: LoggedRun) -> Panels:
    return Panels(name, run)


class Panels:
    """Implements ``Logger``. A resumed run continues its curves."""

    def __init__(self, name: str, run: LoggedRun) -> None:
        self._package: Any = importlib.import_module(name)
        if name == "wandb":
            own: dict[str, Any] = {"project": run.project, "id": run.run_id, "name": run.name, "dir": str(run.folder)}
        else:
            own = {"project": run.project, "name": f"{run.name}-{run.run_id}", "embed": False}
        self._package.init(**own, config=run.config, resume="allow")

    def figures(self, figures: dict[str, float], step: int) -> None:
        self._package.log(figures, step=step)

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        shown = {
            f"episodes/{kind}": self._package.Image(Image.open(io.BytesIO(png)), caption=str(row["task"]))
            for kind, png, row in pictures(rows)
        }
        data = [[row[column] for column in _COLUMNS] for row in rows]
        table = self._package.Table(columns=list(_COLUMNS), data=data)
        self._package.log({"episodes/all": table, **shown}, step=step)

    def close(self) -> None:
        self._package.finish()
