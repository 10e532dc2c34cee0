"""``judge.jsonl`` of a run folder: every verdict of a model, so that none is paid for twice."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from digirl_dist.judge import Verdict
from digirl_dist.storage import json_lines


class Verdicts:
    """Verdicts by their question's digest. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Verdict] = {}
        lines = json_lines.JsonLines(path)
        for line in lines.news(lines.size()):
            with suppress(KeyError, TypeError):  # of another form
                self._known[line["question"]] = Verdict(bool(line["success"]), str(line["said"]))

    def get(self, question: str) -> Verdict | None:
        with self._lock:
            return self._known.get(question)

    def add(self, question: str, verdict: Verdict, model: str, episode_id: str, usage: tuple[int, int]) -> None:
        """Records a verdict; ``usage`` is the tokens in and out. A line lost to a full disk costs one more request."""
        line = {
            "time": round(time.time(), 3),
            "question": question,
            "model": model,
            "episode_id": episode_id,
            "success": verdict.success,
            "said": verdict.said,
            "tokens_in": usage[0],
            "tokens_out": usage[1],
        }
        with self._lock:
            self._known[question] = verdict
            try:
                json_lines.append_object(self._path, line)
            except OSError:
                pass  # other writes, which must succeed, report a full disk
