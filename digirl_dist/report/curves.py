"""Curves of the figures in ``metrics.jsonl`` over iterations, for TensorBoard and Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter

from digirl_dist.errors import SettingsError
from digirl_dist.report.metrics import Figures


class Curves(Protocol):
    """A tool that draws curves."""

    def add(self, figures: Figures, iteration: int) -> None:
        """Adds the next point of each curve."""

    def close(self) -> None:
        """Flushes pending points."""


class TensorBoard:
    """Implements ``Curves``.

    A writer that met a full disk keeps failing. It is dropped with its unwritten points (``metrics.jsonl`` has them),
    and a new writer continues in its own file as soon as there is space.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._writer: SummaryWriter | None = None

    def add(self, figures: Figures, iteration: int) -> None:
        try:
            self._add(figures, iteration)
        except OSError:
            self._writer = None

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()  # type: ignore[no-untyped-call]
        except OSError:
            pass  # the disk is full: metrics.jsonl has the missing points

    def _add(self, figures: Figures, iteration: int) -> None:
        if self._writer is None:
            self._writer = SummaryWriter(self._folder)  # type: ignore[no-untyped-call]
        for name, value in scalars(figures).items():
            self._writer.add_scalar(name, value, iteration)  # type: ignore[no-untyped-call]


class WeightsAndBiases:
    """Implements ``Curves``. Takes its key from WANDB_API_KEY or ``wandb login``, never from a setting.

    A resumed run continues its curves. WANDB_MODE=offline writes them below the run folder.
    """

    def __init__(self, project: str, run_id: str, folder: Path) -> None:
        """Raises SettingsError if the package is not installed or the service refuses the run."""
        wandb = _wandb()
        try:
            self._run = wandb.init(project=project, id=run_id, name=folder.name, dir=str(folder), resume="allow")
        except wandb.Error as error:
            raise SettingsError(f"wandb_project={project}: {error}") from error

    def add(self, figures: Figures, iteration: int) -> None:
        self._run.log(scalars(figures), step=iteration)

    def close(self) -> None:
        self._run.finish()


def scalars(figures: Figures) -> dict[str, float]:
    """Returns the figures that are numbers."""
    named = {name: value for name, value in figures.items() if name not in ("iteration", "time")}
    return {name: value for name, value in named.items() if isinstance(value, int | float)}


def _wandb() -> ModuleType:
    try:
        import wandb
    except ImportError as error:
        raise SettingsError("wandb_project needs the package wandb: pip install 'digirl_dist[wandb]'") from error
    module: ModuleType = wandb
    return module
