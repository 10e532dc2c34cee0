"""Tasks of this package as OpenEnv's Task API has them: by split, each with its place there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from digirl_dist.tasks import Task
from digirl_dist.types import Json

_MOST_SEED = 2**31 - 1


class TaskApi:
    """Lists the tasks of an emulator, and has a reset begin one of them. Its methods raise ValueError."""

    def __init__(self, splits: Mapping[str, Sequence[Task]]) -> None:
        self._splits = splits

    def list_splits(self) -> list[str]:
        return list(self._splits)

    def num_tasks(self, split: str) -> int:
        return len(self._of(split))

    def list_tasks(self, split: str) -> list[Json]:
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> Json:
        self._task(split, index)
        return self.get_task_range(split, index, index + 1)[0]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Json]:
        """Returns the tasks from ``start`` on, without the one at ``stop``."""
        for place in (start, stop):
            if place is not None and (isinstance(place, bool) or not isinstance(place, int) or place < 0):
                raise ValueError(f"start and stop count tasks from 0, and {place!r:.80} does not")
        numbered = list(enumerate(self._of(split)))[start:stop]
        return [{"split": split, "index": index, **asdict(task)} for index, task in numbered]

    def begin(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the emulator's reset is asked, for a reset of a client's.

        It names a task by ``split`` and ``index``, or by ``task_id``, of any split unless it names one too; without
        either, its seed chooses one.
        """
        seed, split = data["seed"], data.get("split", self.list_splits()[0])
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MOST_SEED:
            raise ValueError(f"seed={seed!r:.80} is no whole number from 0 to {_MOST_SEED}")
        index = data.get("index", seed % max(1, self.num_tasks(split)))
        if (wanted := data.get("task_id")) is not None:
            splits = {split: self._of(split)} if "split" in data else self._splits
            places = [(name, place) for name in splits for place, task in enumerate(splits[name]) if task.id == wanted]
            if not places:
                raise ValueError(f"split {' or '.join(splits)} has no task {wanted!r:.80}; list_tasks has those of one")
            split, index = places[0]
        return {"seed": seed, "task": asdict(self._task(split, index))}

    def _of(self, split: str) -> Sequence[Task]:
        if not isinstance(split, str) or split not in self._splits:
            raise ValueError(f"there is no split {split!r:.80}; there are {', '.join(self._splits)}")
        return self._splits[split]

    def _task(self, split: str, index: int) -> Task:
        tasks = self._of(split)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(tasks):
            raise ValueError(f"split {split!r} has tasks 0 to {len(tasks) - 1}, and not {index!r:.80}")
        return tasks[index]
