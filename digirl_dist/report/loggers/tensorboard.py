"""TensorBoard: event files in the run folder, without torch's writer, which is slow to import."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from PIL import Image

from digirl_dist.report.loggers import LoggedRun, pictures
from digirl_dist.types import Json

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

_METRICS = ("learning/success_rate", "learning/reward_mean", "evaluation/success_rate")
"""What the table of hyperparameters shows beside them."""


def build(_: str, run: LoggedRun) -> TensorBoard:
    return TensorBoard(run)


class TensorBoard:
    """Implements ``Logger``.

    A writer that met a full disk keeps failing. It is dropped with its unwritten points (``metrics.jsonl`` has them),
    and a new writer continues in its own file as soon as there is space.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._writer: EventFileWriter | None = None

    def figures(self, figures: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(Summary(value=values), step)

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        """Shows the pictures; TensorBoard has no tables."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for kind, png, _ in pictures(rows):
            self._add(Summary(value=[Summary.Value(tag=f"episodes/{kind}", image=_image(png))]), step)

    def close(self) -> str:
        with suppress(OSError):  # the disk is full: metrics.jsonl has the missing points
            if self._writer is not None:
                self._writer.close()
        return str(self._run.folder / "tensorboard")

    def _add(self, summary: Summary, step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            if self._writer is None:
                self._open()
            assert self._writer is not None
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._writer.flush()
        except OSError:
            self._writer = None

    def _open(self) -> None:
        """Has viewers forget the steps that are made again, and tells the settings."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self._run.folder / "tensorboard"))
        if self._run.purge is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=self._run.purge, session_log=start))
        plain = {name: value for name, value in self._run.config.items() if isinstance(value, bool | int | float | str)}
        metrics = [summary_v2.Metric(name) for name in _METRICS]
        for summary in (summary_v2.hparams_config_pb([], metrics), summary_v2.hparams_pb(plain, self._run.run_id)):
            self._writer.add_event(Event(wall_time=time.time(), summary=summary))


def _image(png: bytes) -> Summary.Image:
    from tensorboard.compat.proto.summary_pb2 import Summary

    with Image.open(io.BytesIO(png)) as opened:
        width, height = opened.size
    return Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
