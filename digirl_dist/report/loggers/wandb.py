"""Weights & Biases. The key comes from WANDB_API_KEY or ``wandb login``; WANDB_MODE=offline writes to the folder."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from digirl_dist.report.loggers import LoggedRun
from digirl_dist.types import Json

PACKAGE = "wandb"
ISOLATED = True

_COLUMNS = ("iteration", "ticket", "task", "instruction", "success", "reward", "steps", "worker", "policy_version")


def build(run: LoggedRun) -> WeightsAndBiases:
    return WeightsAndBiases(run)


class WeightsAndBiases:
    """Implements ``Logger``. A resumed run continues its curves."""

    def __init__(self, run: LoggedRun) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run = wandb.init(
            project=run.project, id=run.run_id, name=run.name, dir=run.folder, config=run.config, resume="allow"
        )

    def figures(self, figures: dict[str, float], step: int) -> None:
        self._run.log(figures, step=step)

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        shown: dict[str, Any] = {}
        for row in rows:
            if "picture" in row:
                image = Image.open(io.BytesIO(base64.b64decode(row["picture"])))
                kind = "success" if row["success"] else "failure"
                shown[f"episodes/{kind}"] = self._wandb.Image(image, caption=str(row["task"]))
        data = [[row[column] for column in _COLUMNS] for row in rows]
        self._run.log({"episodes/all": self._wandb.Table(columns=list(_COLUMNS), data=data), **shown}, step=step)

    def close(self) -> None:
        self._run.finish()
