"""Tries an emulator once on this machine: start, reset, one step, another reset, each timed.

``python -m digirl_dist.worker_program.trial`` reads a line of JSON (see ``TrialRequest``) and then the packed emulator
from stdin, and prints a line of JSON per phase: ``{"phase": "reset", "seconds": 0.1, "seen": "216x384 PNG of 31 kB"}``
(``unlike``: it started unlike before, with the same seed), or ``{"error": REASON}``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from digirl_dist.emulator.starts import start_alike
from digirl_dist.errors import ActionError, EmulatorError, TrajectoryError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.slot import Slot
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

_END_LIMIT_S = 10.0


@dataclass(frozen=True)
class TrialRequest:
    """``size``: bytes of the packed emulator that follow. ``task`` and ``limits``: fields of Task and SlotLimits.

    ``steady`` is that of the emulator's spec.
    """

    size: int
    task: dict[str, Json]
    action: Json
    steady: bool
    limits: dict[str, Any]


def main(source: BinaryIO) -> int:
    request = TrialRequest(**json.loads(source.readline()))
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        emulator = Path(folder) / "emulator"
        emulator.write_bytes(source.read(request.size))
        slot = Slot(0, emulator, SlotLimits(**request.limits), Path(folder) / "log")
        try:
            _try(slot, Task(**request.task), request)
        except (EmulatorError, ActionError, TrajectoryError) as error:
            _tell(error=str(error))
        finally:
            slot.close()
            slot.wait(time.monotonic() + _END_LIMIT_S)
    return 0


def _try(slot: Slot, task: Task, asked: TrialRequest) -> None:
    slot.start()
    _tell(phase="boot", seconds=_wait(slot)[1], seen="")
    starts: list[Observation] = []
    for phase in ("reset", "step", "reset again"):
        if phase == "step":
            slot.step(asked.action)
        else:
            slot.reset(task, seed=0)
        answer, seconds = _wait(slot)
        seen = answer.observation if isinstance(answer, Transition) else answer
        starts += [seen] if phase != "step" else []
        _tell(
            phase=phase, seconds=seconds, seen=_seen(seen), unlike=not start_alike(starts[0], starts[-1], asked.steady)
        )


def _wait(slot: Slot) -> tuple[Any, float]:
    """What came back, and the seconds that it took by our clock. Raises as ``Slot.answer`` does."""
    started = time.monotonic()
    return slot.wait_for_answer()[0], time.monotonic() - started


def _seen(observation: Observation) -> str:
    """Decodes the picture, so that one that cannot be read is found out."""
    if observation.image is not None:
        from PIL import Image

        picture = Image.open(BytesIO(observation.image))
        picture.load()
        width, height = picture.size
        return f"{width}x{height} {picture.format} of {len(observation.image) / 1024:.0f} kB"
    return (
        f"{len(observation.vector)} numbers" if observation.vector is not None else f"{len(observation.text)} letters"
    )


def _tell(**message: Json) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
