"""Converts DigiRL's released trajectory files (``.pt``) to Parquet: ``script/import_digirl FILE.pt OUT.parquet``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from digirl_dist.errors import DigirlDistError, TrajectoryError
from digirl_dist.exit_status import Parser
from digirl_dist.storage import parquet
from digirl_dist.storage.safe_torch_load import load_plain
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

_NEEDED = ("observation", "next_observation", "reward", "done", "action")
_SPARE = 32 << 20
_MOST_PER_BYTE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 1 if a file cannot be used."""
    parser = Parser(prog="script/import_digirl", description=__doc__)
    parser.add_argument("source", type=Path, help="a .pt file as DigiRL released it")
    parser.add_argument("target", type=Path, help="the Parquet file to write")
    parser.add_argument("--images", type=Path, help="folder of screenshots, matched by file name; none by default")
    options = parser.parse_args(arguments)
    try:
        trajectories = read(options.source, options.images)
        parquet.write(options.target, trajectories)
    except (DigirlDistError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    steps, wins = sum(len(each.steps) for each in trajectories), sum(each.success for each in trajectories)
    print(f"{options.target}: {len(trajectories)} episodes, {steps} steps, {wins} successes")
    return 0


def read(source: Path, images: Path | None = None) -> list[Trajectory]:
    """Returns the episodes of a file, except those without steps. Raises TrajectoryError naming the place and defect.

    ``observation`` becomes the text and ``image_features`` the vector of an observation; ``action`` stays a text.
    Log-probabilities, which DigiRL did not record, are nan.
    """
    content = load_plain(source)
    if not isinstance(content, list):
        raise TrajectoryError(f"{source} holds no list of trajectories")
    _refuse_repetition(content, source)
    found = [_trajectory(rows, index, source, images) for index, rows in enumerate(content) if rows]
    if not found:
        raise TrajectoryError(f"{source} holds no trajectory")
    return found


def _refuse_repetition(content: list[Any], source: Path) -> None:
    """A pickle may name one object again and again, in two bytes each time; written out, each costs its own size."""
    values = [
        value
        for rows in content
        if isinstance(rows, list)
        for row in rows
        if isinstance(row, dict)
        for value in row.values()
    ]
    written = sum(len(value) if isinstance(value, str) else getattr(value, "nbytes", 8) for value in values)
    if written > _SPARE + _MOST_PER_BYTE * source.stat().st_size:
        raise TrajectoryError(f"{source} would unpack to {written} bytes")


def _trajectory(rows: Any, index: int, source: Path, images: Path | None) -> Trajectory:
    where = f"{source}, trajectory {index}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TrajectoryError(f"{where} is no list of steps")
    for number, row in enumerate(rows):
        missing = [key for key in _NEEDED if key not in row]
        if missing:
            raise TrajectoryError(f"{where}, step {number} has no {missing[0]!r}")
    try:
        return _from_rows(rows, index, source, images)
    except (TypeError, ValueError) as error:
        raise TrajectoryError(f"{where}: {error}") from error


def _from_rows(rows: Sequence[Mapping[str, Any]], index: int, source: Path, images: Path | None) -> Trajectory:
    first, last = rows[0], rows[-1]
    instruction = str(first.get("task") or first["observation"])
    # DigiRL names the screenshot taken after the step, so it belongs to the next observation.
    shots = [None, *(_image(row, images) for row in rows)]
    steps = [_step(row, shot, is_last=row is last) for row, shot in zip(rows, shots, strict=False)]
    return Trajectory(
        ticket=Ticket(0, index, Task(instruction, instruction), 0, 0),
        episode_id=f"{source.stem}-{index:06d}",
        worker="digirl",
        slot=0,
        steps=steps,
        final_observation=_observation(last["next_observation"], last.get("next_image_features"), shots[-1]),
        success=float(first.get("trajectory_reward", sum(step.reward for step in steps))) > 0,
    )


def _step(row: Mapping[str, Any], shot: bytes | None, is_last: bool) -> Step:
    """Returns a step; the last one is truncated if the episode was not done there."""
    done, reward = bool(row["done"]), float(row["reward"])
    if not math.isfinite(reward):
        raise ValueError(f"a reward is {reward}")
    return Step(
        observation=_observation(row["observation"], row.get("image_features"), shot),
        action=str(row["action"]),
        log_prob=math.nan,  # unknown
        reward=reward,
        terminated=done,
        truncated=is_last and not done,
    )


def _observation(text: Any, features: Any, shot: bytes | None) -> Observation:
    return Observation(str(text), shot, _vector(features))


def _vector(features: Any) -> np.ndarray | None:
    """Returns features as float32 of shape [n]; None if DigiRL had none, which it writes as None or a text."""
    match features:
        case torch.Tensor():
            vector = features.detach().float().reshape(-1).numpy()
        case np.ndarray():
            vector = features.astype(np.float32).reshape(-1)
        case None | str():
            return None
        case _:
            raise TypeError(f"image features are a {type(features).__name__}, not an array")
    if not np.isfinite(vector).all():
        raise ValueError("image features have NaN or infinite numbers")
    return vector


def _image(row: Mapping[str, Any], images: Path | None) -> bytes | None:
    """Returns the screenshot's unchanged bytes, looked up by file name alone: the paths are another machine's."""
    name = Path(str(row.get("image_path") or "")).name
    if images is None or not name or not (images / name).is_file():
        return None
    return (images / name).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
