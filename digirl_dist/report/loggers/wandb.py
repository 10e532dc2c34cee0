"""Weights & Biases. The key comes from WANDB_API_KEY or ``wandb login``; WANDB_MODE=offline writes to the folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from digirl_dist.report.loggers import LoggedRun, panels
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
        self._run.log(panels(rows, _COLUMNS, self._wandb.Image, self._wandb.Table), step=step)

    def close(self) -> None:
        self._run.finish()
