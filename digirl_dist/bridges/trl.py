"""TRL's asynchronous GRPO on a fleet: ``FleetRollouts`` is its ``rollout_worker``, a ``WritingModel`` its
``weight_transfer``."""

from __future__ import annotations

import itertools
import json
import queue
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from digirl_dist.api.endpoint import Endpoint
from digirl_dist.api.fleet import Fleet
from digirl_dist.api.rollouts import Act, Group
from digirl_dist.bridges.writing_model import WritingModel
from digirl_dist.errors import SettingsError, WorkerError
from digirl_dist.settings.extras import extra_needed
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Step

with extra_needed("bridges.trl", "TRL", "trl"):
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

_MOST_WAITING = 256
"""Rows that TRL has not taken yet, beyond which no group is taken from the fleet."""
_LOOK_S = 0.5
_STOP_S = 10.0
_LEAST_DEVIATION = 1e-8
"""TRL's own."""


class FleetRollouts:
    """TRL's ``rollout_worker``: each step of an episode is a row, with the advantage of its episode in its group.

    A rollout that is lost is no row, and no part of its group's baseline; TRL's metrics count what it was lost to.
    """

    def __init__(
        self,
        fleet: Fleet,
        act: WritingModel | Endpoint | Act,
        tasks: Iterable[str | Task] | None = None,
        group_size: int = 8,
        ahead: int = 1,
        key: str | None = None,
    ) -> None:
        """``act``, ``tasks``, ``group_size``, ``ahead`` and ``key`` are those of ``Fleet.stream``; ``tasks`` should
        have no end, as the default has none: the fleet's own, again and again. A function that acts returns Decisions
        with tokens."""
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(_MOST_WAITING)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._fleet = fleet
        self._act = act
        self._tasks = itertools.cycle(fleet.tasks) if tasks is None else tasks
        self._versions: dict[int, int] = {}
        """The fleet's number of a policy -> TRL's. One of an earlier process is none of these, and counts as 0."""
        self._stopping = threading.Event()
        self._stream = partial(
            fleet.stream, self._tasks, act=act, group_size=group_size, ahead=ahead, key=key, until=self._stopping
        )
        self._over = ""
        self._thread = threading.Thread(target=self._run, name="trl-rollouts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Cancels what is under way. The fleet stays open."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def update_model_version(self, model_version: int) -> None:
        """Steps that are decided from now on count as those of this version."""
        self._versions[self._fleet.update(self._act)] = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises WorkerError if nothing will come any more, or no worker has shown a sign of life for so long."""
        if self._over:
            raise WorkerError("the fleet", self._over)
        heard = [at for each in self._fleet.status().values() if isinstance(at := each["heard_at"], float)]
        silent_s = time.monotonic() - max(heard, default=time.monotonic())
        if silent_s > stale_after_s:
            raise WorkerError("the fleet", f"no worker has shown a sign of life for {silent_s:.0f} s")

    def _run(self) -> None:
        try:
            for number, group in enumerate(self._stream()):
                for kind, count in Counter(lost.kind for lost in group.missing).items():
                    self.metrics_queue.put({f"rollouts/lost_{kind}_total": float(count)})
                for row in self._rows(number, group):
                    self._put(row)
            if not self._stopping.is_set():
                self._over = "its tasks are used up: give some without end, such as itertools.cycle(fleet.tasks)"
        except Exception as error:
            self._over = f"{type(error).__name__}: {error}"

    def _put(self, row: RolloutSample) -> None:
        """Waits for room; once TRL has learned enough, nobody needs the row."""
        while not self._stopping.is_set():
            with suppress(queue.Full):
                self.rollout_buffer.put(row, timeout=_LOOK_S)
                return

    def _rows(self, number: int, group: Group) -> Iterator[RolloutSample]:
        rewards = [episode.reward for episode in group]
        deviation = statistics.pstdev(rewards) if rewards else 0.0
        for episode in group:
            advantage = (episode.reward - statistics.fmean(rewards)) / (deviation + _LEAST_DEVIATION)
            for step, version in zip(episode.steps, episode.versions, strict=True):
                asked, written = _tokens(step)
                yield RolloutSample(
                    prompt=[{"role": "user", "content": step.observation.text}],
                    completion=[{"role": "assistant", "content": json.dumps(step.action)}],
                    input_ids=np.array([*asked, *written], np.int64),
                    completion_mask=np.repeat([0, 1], [len(asked), len(written)]),
                    old_log_probs=np.array([0.0] * len(asked) + [*step.token_log_probs], np.float32),
                    advantage=advantage,
                    model_version=self._versions.get(version, 0),
                    group_id=number,
                    metrics={"reward": episode.reward, "reward_std": deviation},
                )


def _tokens(step: Step) -> tuple[Sequence[int], Sequence[int]]:
    """Returns what the model read and wrote. Raises SettingsError if that was not recorded."""
    if not len(step.prompt_tokens) or not 0 < len(step.tokens) == len(step.token_log_probs):
        raise SettingsError(
            f"the action {step.action!r:.100} came without tokens with log-probabilities: act with a WritingModel, "
            "or through an Endpoint whose server reports them, as vLLM does"
        )
    return step.prompt_tokens, step.tokens
