"""The terminal output of a running run."""

from __future__ import annotations

import sys
import threading

from tqdm import tqdm

from digirl_dist.plain_text import printable
from digirl_dist.report.metrics import Figures
from digirl_dist.types import Json


class Progress:
    """A bar over the episodes of an iteration, fed by events, and one line per finished iteration."""

    def __init__(self, episodes: int) -> None:
        self._bar = tqdm(total=episodes, unit="ep", leave=False, file=sys.stderr, disable=not sys.stderr.isatty())
        self._lock = threading.Lock()
        self._successes = 0
        self._verdicts: list[bool] = []
        self._workers: set[str] = set()

    def listen(self, kind: str, content: dict[str, Json]) -> None:
        """Handles an event: moves the bar, or prints a message for the user."""
        with self._lock:
            match kind:
                case "episode":
                    self._successes += content["success"]
                    self._bar.update()
                    self._bar.set_postfix(success=f"{self._successes / max(1, self._bar.n):.2f}", refresh=False)
                case "judged":
                    self._verdicts.append(content["success"])
                    judged = f"{sum(self._verdicts) / len(self._verdicts):.2f} of {len(self._verdicts)}"
                    self._bar.set_postfix(judged=judged, refresh=False)
                case "judge_away":
                    self.say(f"the judge is unavailable: {content['reason']}; retry in {content['again_in_s']} s")
                case "worker_joined":
                    self._workers.add(content["worker"])
                    self._count_workers()
                case "worker_lost":
                    self._workers.discard(content["worker"])
                    self._count_workers()
                    remedy = f" -> {content['remedy']}" if content["remedy"] else ""
                    self.say(f"worker {content['worker']} lost: {content['reason']}{remedy}")
                case "worker_queued":
                    self.say(f"worker {content['worker']}: {content['doing']} (since {content['seconds']} s)")
                case "slot" if content["state"] == "long":
                    self.say(f"worker {content['worker']}, slot {content['slot']}: {content['reason']}")
                case "slot" if content["state"] == "closed":
                    place = f"worker {content['worker']}, slot {content['slot']}"
                    self.say(f"{place} is out of service: {content['reason']}")
                case "bsize":
                    self.say(f"worker {content['worker']}: bsize: auto chose {content['slots']}: {content['reason']}")
                case "installing":
                    self.say(f"worker {content['worker']}: checking or installing digirl_dist in {content['run_path']}")

    def iteration(self, figures: Figures) -> None:
        """Prints the line of a finished iteration and resets the bar."""
        with self._lock:
            parts = [f"{name} {figures[key]:.2f}" for name, key in _SHOWN.items() if figures.get(key) is not None]
            tqdm.write(f"iteration {figures['iteration']:>3}  " + "  ".join(parts), file=sys.stdout)
            sys.stdout.flush()
            self._successes = 0
            self._verdicts.clear()
            self._bar.reset()

    def evaluation(self, figures: Figures) -> None:
        with self._lock:
            self._successes = 0
            self._bar.reset()
        self.say(
            f"checkpoint {figures['checkpoint']}: success {figures['success_rate']:.2f} "
            f"({figures['success_low']:.2f} to {figures['success_high']:.2f}), "
            f"reward {figures['reward_mean']:.2f} over {figures['episodes']} episodes"
        )

    def say(self, text: str) -> None:
        tqdm.write(printable(text), file=sys.stderr)

    def close(self) -> None:
        self._bar.close()

    def _count_workers(self) -> None:
        self._bar.set_description(f"{len(self._workers)} workers")


_SHOWN = {
    "success": "success_rate",
    "reward": "reward_mean",
    "collect": "collect_s",
    "update": "update_s",
    "overhead": "overhead_s",
}
