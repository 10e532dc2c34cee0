"""The figures of ``metrics.jsonl`` as TensorBoard curves."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from digirl_dist.tasks import Json


class Curves:
    """Scalar curves over iterations."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]

    def add(self, figures: dict[str, Json], iteration: int) -> None:
        for name, value in figures.items():
            if isinstance(value, int | float) and name not in ("iteration", "time"):
                self._writer.add_scalar(name, value, iteration)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]
