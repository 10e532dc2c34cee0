"""What is pulled together, and what waits for room on the host's disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from process_watch import eventually

from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import DigirlDistError, TrajectoryError, WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.transfers import Transfers, _checkers
from digirl_dist.fleet.worker_events import DiskFull, PullRefused, WorkerEvent
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.tasks import Key, Task, Ticket

MIB = 1 << 20


class Slow:
    """Files of a worker: a push waits for ``gate``, and every episode comes broken."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.batches: list[list[str]] = []

    def push(self, blobs: Sequence[Blob], tell: Callable[[WorkerEvent], None]) -> int:
        self.gate.wait()
        return 0

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        self.batches.append([path.name for path in episodes])
        for path in episodes:
            yield path, TrajectoryError("it is broken")


def ask(transfers: Transfers, folder: Path, index: int, size: int) -> None:
    manifest = EpisodeManifest("r1", Key(0, index), 0, 0, f"e{index}", size, "ab12", 0, 1.0, 0.0, {})
    transfers.pull(manifest, Ticket(0, index, Task("any"), seed=0, policy_version=0), folder / str(index))


def test_what_fits_on_the_disk_is_pulled_together_and_the_rest_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 5 * MIB
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    files, posted, failed = Slow(), list[WorkerEvent](), list[WorkerError]()
    transfers = Transfers(files, "w1", posted.append, failed.append, cast(EpisodeGuard, None), full_disk_s=60)
    transfers.push([], lambda sent: None)
    for index in range(5):
        ask(transfers, tmp_path, index, size=2 * MIB)
    ask(transfers, tmp_path, 5, size=6 * MIB)
    files.gate.set()
    eventually(lambda: len(files.batches) == 3 and any(isinstance(event, DiskFull) for event in posted))
    free = 9 * MIB
    eventually(lambda: len([event for event in posted if isinstance(event, PullRefused)]) == 6)
    transfers.close()
    assert not failed
    assert files.batches == [["0", "1"], ["2", "3"], ["4"], ["5"]]


def test_what_comes_is_checked_by_fewer_threads_where_the_machine_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def refused(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        checkers = _checkers.__wrapped__()
    assert checkers.submit(lambda: "checked").result(timeout=60) == "checked"
    checkers.shutdown()
    assert len(started) == 3 and not any(thread.is_alive() for thread in started)
