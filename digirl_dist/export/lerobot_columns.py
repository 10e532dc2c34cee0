"""The columns of a LeRobot data set: what frames of a run have in common, and the statistics over them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from PIL import Image

from digirl_dist.errors import TrajectoryError
from digirl_dist.export.hub_schema import PICTURE, with_hub_features
from digirl_dist.report.picture import SHOWN_FORMATS, UNREADABLE, decoded
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

FPS = 1
_IMAGE, _STATE = "observation.image", "observation.state"
_SAMPLED = 200
"""Pictures that the statistics of the channels come from: each episode's first, up to so many."""
_COUNTS = ("frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Layout:
    """The form that all frames have."""

    numbers: Sequence[str]
    """The names of an action's numbers, in order."""
    kinds: Sequence[str]
    """The types of the actions of a device, in order; empty for other actions."""
    vector_size: int
    image_size: tuple[int, int] | None
    """Height and width."""

    @classmethod
    def of(cls, episodes: Iterable[Trajectory]) -> Layout:
        """Reads all frames. Raises TrajectoryError for frames that differ in form, and for actions without numbers."""
        forms: set[tuple[int, tuple[int, int] | None]] = set()
        numbers: dict[str, None] = {}
        kinds: set[str] = set()
        for episode in episodes:
            for step in episode.steps:
                seen = step.observation
                size = None if seen.image is None else _size(seen.image, episode)
                forms.add((0 if seen.vector is None else len(seen.vector), size))
                numbers.update(dict.fromkeys(_numbers(step.action)))
                if isinstance(step.action, Mapping) and "type" in step.action:
                    kinds.add(str(step.action["type"]))
            if len(forms) > 1:
                told = ", ".join(f"vector of {vector} and image of {image}" for vector, image in sorted(forms, key=str))
                raise TrajectoryError(
                    f"LeRobot wants all frames alike, and episode {episode.episode_id} differs: {told}"
                )
        if not numbers:
            raise TrajectoryError("the actions have no numbers, which LeRobot learns from: export to atif or datasets")
        ((vector_size, image_size),) = forms
        return cls(sorted(numbers, key=_order), sorted(kinds), vector_size, image_size)

    @property
    def features(self) -> dict[str, Json]:
        """As ``meta/info.json`` has them."""
        found: dict[str, Json] = {"action": _feature("float32", len(self.numbers), list(self.numbers))}
        if self.vector_size:
            found[_STATE] = _feature("float32", self.vector_size)
        if self.image_size is not None:
            names = ["height", "width", "channels"]
            found[_IMAGE] = {"dtype": "image", "shape": [*self.image_size, 3], "names": names}
        found |= {"next.reward": _feature("float32"), "next.done": _feature("bool"), "next.success": _feature("bool")}
        found |= {"action_json": _feature("string"), "timestamp": _feature("float32")}
        return found | {name: _feature("int64") for name in _COUNTS}

    @property
    def schema(self) -> pa.Schema:
        plain = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_(), "string": pa.string()}
        fields = []
        for name, feature in self.features.items():
            kind = PICTURE if feature["dtype"] == "image" else plain[feature["dtype"]]
            size = feature["shape"][0]
            fields.append((name, pa.list_(kind, size) if len(feature["shape"]) == 1 and size > 1 else kind))
        return with_hub_features(pa.schema(fields))

    def rows(self, episode: Trajectory, number: int, first: int, task: int) -> list[Mapping[str, Json]]:
        """Returns a row for each step; ``first`` is the number of frames before the episode."""
        rows: list[Mapping[str, Json]] = []
        for at, step in enumerate(episode.steps):
            row: dict[str, Json] = {"action": self._action(step.action), "action_json": json.dumps(step.action)}
            if step.observation.vector is not None:
                row[_STATE] = _one_or_all([float(each) for each in step.observation.vector])
            if step.observation.image is not None:
                row[_IMAGE] = {"bytes": step.observation.image, "path": f"frame-{at:06d}"}
            done = at == len(episode.steps) - 1
            row |= {"next.reward": step.reward, "next.done": done, "next.success": done and episode.success}
            row |= {"timestamp": at / FPS, "frame_index": at, "episode_index": number}
            rows.append(row | {"index": first + at, "task_index": task})
        return rows

    def _action(self, action: Json) -> Json:
        values = _numbers(action)
        if isinstance(action, Mapping) and "type" in action:
            values["type"] = self.kinds.index(str(action["type"]))
        return _one_or_all([float(values.get(name, 0.0)) for name in self.numbers])


class Moments:
    """Mean, deviation, least and greatest of each column of numbers, and of the channels of some pictures."""

    def __init__(self, layout: Layout) -> None:
        self._names = [name for name, each in layout.features.items() if each["dtype"] in ("float32", "int64", "bool")]
        self._sums: dict[str, list[np.ndarray]] = {}
        self._counts: dict[str, int] = {}
        self._pictures = 0

    def add(self, rows: Sequence[Mapping[str, Json]], episode: Trajectory) -> None:
        """Takes in the rows of one episode."""
        for name in self._names:
            self._take(name, np.array([row[name] for row in rows], np.float64).reshape(len(rows), -1))
        first = episode.steps[0].observation.image
        if first is not None and self._pictures < _SAMPLED:
            self._pictures += 1
            with _readable(episode):
                pixels = np.asarray(decoded(first), np.float64) / 255
            self._take(_IMAGE, pixels.reshape(-1, 3))

    def statistics(self) -> dict[str, Json]:
        """As ``meta/stats.json`` has them."""
        found: dict[str, Json] = {}
        for name, (least, most, total, squares) in self._sums.items():
            count = self._counts[name]
            mean = total / count
            deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
            values = {"min": least, "max": most, "mean": mean, "std": deviation}
            shape = (3, 1, 1) if name == _IMAGE else (-1,)
            shown = {key: value.reshape(shape).tolist() for key, value in values.items()}
            found[name] = {**shown, "count": [self._pictures if name == _IMAGE else count]}
        return found

    def _take(self, name: str, values: np.ndarray) -> None:
        new = [values.min(0), values.max(0), values.sum(0), (values**2).sum(0)]
        old = self._sums.get(name)
        ways = (np.minimum, np.maximum, np.add, np.add)
        self._sums[name] = new if old is None else [way(a, b) for way, a, b in zip(ways, old, new, strict=True)]
        self._counts[name] = self._counts.get(name, 0) + len(values)


@contextmanager
def _readable(episode: Trajectory) -> Iterator[None]:
    """Raises TrajectoryError, naming the episode, in place of what Pillow raises."""
    try:
        yield
    except UNREADABLE as error:
        name = f"a screenshot of episode {episode.episode_id}"
        raise TrajectoryError(f"{name} is no PNG or JPEG of a screen's size, or damaged") from error


def _size(image: bytes, episode: Trajectory) -> tuple[int, int]:
    """Returns height and width; a stranger's picture may be of any format, and only those of screenshots are opened."""
    with _readable(episode), Image.open(io.BytesIO(image), formats=SHOWN_FORMATS) as opened:
        return opened.height, opened.width


def _feature(dtype: str, size: int = 1, names: list[str] | None = None) -> dict[str, Json]:
    return {"dtype": dtype, "shape": [size], "names": names}


def _one_or_all(values: list[float]) -> Json:
    """A feature of one number is a number."""
    return values[0] if len(values) == 1 else values


def _numbers(action: Json, name: str = "action") -> dict[str, float]:
    """Returns the numbers of an action by their names; ``action_1_0`` is the first of the list at place 1."""
    match action:
        case bool() | int() | float():
            return {name: float(action)}
        case list():
            return {key: one for at, part in enumerate(action) for key, one in _numbers(part, f"{name}_{at}").items()}
        case Mapping():
            found = {key: float(each) for key, each in action.items() if isinstance(each, int | float)}
            return ({"type": 0.0} if "type" in action else {}) | {k: v for k, v in found.items() if math.isfinite(v)}
    return {}


def _order(name: str) -> tuple[bool, list[int], str]:
    """``type`` first, then as numbers count and letters go."""
    head, *places = name.split("_")
    is_place = head == "action" and all(place.isdecimal() for place in places)
    return (name != "type", [int(place) for place in places] if is_place else [], name)
