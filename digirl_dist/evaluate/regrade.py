"""``digirl-dist regrade``: judges the episodes of a run again, and keeps the verdicts beside the old ones."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from digirl_dist.assembly.parts import build_judge
from digirl_dist.assembly.validate import refuse_judge
from digirl_dist.errors import on_error
from digirl_dist.judge import Judge
from digirl_dist.report.progress import Progress
from digirl_dist.settings import Settings, Success
from digirl_dist.storage.episode_index import EpisodeIndex
from digirl_dist.storage.events import Events
from digirl_dist.storage.verdicts import LaterVerdict, VerdictFile
from digirl_dist.types import Json
from digirl_dist.user_code.entry_point import load_entry_point


def regrade(folder: Path, settings: Settings, name: str, progress: Progress) -> str:
    """Judges each episode that has no verdict of that name yet, once; returns what came of it, in a sentence.

    What ends early goes on by the same call. Raises SettingsError for a judge that cannot be used, JudgeError for one
    that gives no verdict, TrajectoryError for a damaged file.
    """
    refuse_judge(settings)
    with ExitStack() as stack:
        index = EpisodeIndex(folder)
        index.refresh()
        for note in index.notes:
            progress.say(f"{note}; its episodes are left out", "yellow")
        file = stack.enter_context(VerdictFile(folder, name, _identity(settings)))
        events = Events(folder / "events.jsonl", (progress.listen,))
        stack.callback(events.close)
        judge = build_judge(settings, folder / "judge.jsonl", events)
        assert judge is not None
        stack.callback(judge.close)
        rows = index.table().select(["key", "success"]).to_pylist()
        open_rows = [row for row, one in enumerate(rows) if one["key"] not in file.known]
        judged = _judge_all(judge, index, open_rows, file, progress)
        given = file.known | judged
        scores = [given[one["key"]].score for one in rows]
    before, after = sum(one["success"] for one in rows), sum(score >= 1 for score in scores)
    told = f"{file.path}: {len(judged)} episodes judged, {len(rows) - len(judged)} were before"
    return f"{told}; success {after / len(rows):.2f}, was {before / len(rows):.2f}" if rows else told


def _judge_all(
    judge: Judge, index: EpisodeIndex, rows: list[int], file: VerdictFile, progress: Progress
) -> dict[str, LaterVerdict]:
    lock, failed, judged = threading.Lock(), threading.Event(), dict[str, LaterVerdict]()
    progress.status.host("judge episodes")

    def judge_one(row: int) -> None:
        if failed.is_set():
            return
        with on_error(failed.set):
            episode = index.read(row)
            found = judge.verdict(episode)
        given = LaterVerdict(episode.ticket.key.name, episode.episode_id, found.score, found.said)
        file.add(given)
        with lock:
            judged[given.key] = given
            progress.status.part = len(judged), len(rows)

    with ThreadPoolExecutor(judge.parallel) as pool:
        try:
            for _ in pool.map(judge_one, rows):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            judge.close()
            raise
    return judged


def _identity(settings: Settings) -> Mapping[str, Json]:
    """Returns who judges: verdicts of two judges do not belong into one file, nor those of two states of one."""
    if settings.success is Success.predicate:
        source, name = "", str(settings.predicate)
        with suppress(OSError, TypeError):  # no Python function
            source = inspect.getsource(load_entry_point(name, "predicate"))
        return {"predicate": name, "digest": hashlib.sha256(source.encode()).hexdigest()[:16]}
    judge = settings.judge
    asked = {"prompt": judge.prompt, "screenshots": judge.screenshots, "request": judge.request}
    return {"model": judge.model, "base_url": judge.base_url, **asked}
