"""What is pulled together, and what waits for room on the host's disk."""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process_watch import eventually

from digirl_dist.child_process import environment
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import DigirlDistError, TrajectoryError, WorkerError
from digirl_dist.fleet.ledger import Ledger, Shares
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.transfers import _CHECKERS, Transfers
from digirl_dist.fleet.worker_events import DiskFull, PullRefused, Throttled, WorkerEvent
from digirl_dist.protocol.messages import EpisodeManifest, Need
from digirl_dist.tasks import Key, Task, Ticket
from digirl_dist.threads import Threads

MIB = 1 << 20


class Slow:
    """Files of a worker: a push waits for ``gate``, and every episode comes broken."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.batches: list[list[str]] = []

    def push(self, need: Need, blobs: Sequence[Blob], tell: Callable[[WorkerEvent], None]) -> int:
        self.gate.wait()
        return 0

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        self.batches.append([path.name for path in episodes])
        for path in episodes:
            yield path, TrajectoryError("it is broken")


def transfers_of(
    files: Any, worker: str, post: Callable[[Any], None], failed: Callable[[Any], None], shares: Shares
) -> Transfers:
    return Transfers(files, worker, post, failed, EpisodeGuard(), shares, Ledger(), full_disk_s=60)


def ask(transfers: Transfers, folder: Path, index: int, size: int) -> None:
    manifest = EpisodeManifest("r1", Key(0, index), 0, 0, f"e{index}", size, "ab12", 0, 1.0, 0.0, {})
    transfers.pull(manifest, Ticket(0, index, Task("any"), seed=0, policy_version=0), folder / str(index))


def test_what_fits_on_the_disk_is_pulled_together_and_the_rest_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 5 * MIB
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    files, posted, failed = Slow(), list[WorkerEvent](), list[WorkerError]()
    transfers = transfers_of(files, "w1", posted.append, failed.append, Shares())
    transfers.push(Need("policy", []), [], lambda sent: None)
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
        checkers = Threads(_CHECKERS, "arrivals")
    checked = queue.SimpleQueue[str]()
    checkers.do(lambda: checked.put("checked"))
    assert checked.get(timeout=60) == "checked" and len(started) == 3


def test_unchecked_episodes_have_room_by_their_bytes() -> None:
    """Several, or one that is as large as it likes."""
    ledger, waiting = Ledger(), queue.SimpleQueue[int]()

    def keep(size: int) -> None:
        ledger.keep_once_there_is_room("unchecked", size)
        waiting.put(size)

    for _ in range(8):
        ledger.keep_once_there_is_room("unchecked", MIB)
    keeping = threading.Thread(target=keep, args=[200 * MIB], daemon=True)
    keeping.start()
    for _ in range(8):
        assert waiting.empty()
        ledger.keep("unchecked", -MIB)
    assert waiting.get(timeout=60) == 200 * MIB
    assert not ledger.has_room("unchecked", 1)


class Quick(Slow):
    """Every episode comes at once."""

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        for path in episodes:
            self.batches.append([path.name])
            yield path, None


def test_four_episodes_wait_unchecked_and_then_the_worker_waits(tmp_path: Path) -> None:
    files, posted, checked = Quick(), list[WorkerEvent](), threading.Event()

    def post(event: WorkerEvent) -> None:
        checked.wait()
        posted.append(event)

    transfers = transfers_of(files, "w1", post, posted.append, Shares())
    transfers.push(Need("policy", []), [], lambda sent: None)  # so that all are asked for together
    for index in range(12):
        ask(transfers, tmp_path, index, size=1)
    files.gate.set()
    eventually(lambda: len(files.batches) == 5)
    time.sleep(0.2)
    assert len(files.batches) == 5 and not posted
    checked.set()
    eventually(lambda: len(posted) == 12)
    transfers.close()


@pytest.mark.component
def test_a_check_that_does_not_end_does_not_hold_up_the_end_of_the_host() -> None:
    """Ctrl-C while the screens of an episode are decoded: their thread is joined by nobody."""
    program = (
        "import threading\nfrom digirl_dist.fleet.transfers import _checkers\nbegan = threading.Event()\n"
        "_checkers().do(lambda: (began.set(), threading.Event().wait()))\nbegan.wait()\nraise KeyboardInterrupt"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, env=environment())
    assert b"KeyboardInterrupt" in ended.stderr


def bring(shares: Shares, worker: str, episodes: int, memory: int, seconds: float = 0.01) -> int:
    """Returns how many of the episodes were kept."""
    for kept in range(episodes):
        try:
            shares.check(worker, memory)
        except TrajectoryError:
            return kept
        shares.checked(worker, seconds, now=0.0)
        shares.kept(worker, memory)
    return episodes


def test_counted_where_bytes_are_meant_a_worker_costs_no_more_than_others_do() -> None:
    shares = Shares()
    for worker in ("w1", "w2"):
        assert bring(shares, worker, 10, MIB) == 10
    assert bring(shares, "w0", 100, 9 * MIB) == 12  # 64 MiB, and four times as much as theirs
    assert bring(shares, "w3", 1000, 3 * MIB, seconds=0.04) == 1000  # tasks of a kind that take more
    assert bring(shares, "w1", 1000, MIB) == 1000


def test_counted_where_seconds_are_meant_a_worker_is_refused_before_its_episode_is_fetched() -> None:
    shares = Shares()
    for worker in ("w1", "w2"):
        bring(shares, worker, 10, MIB)
    for _ in range(6):
        shares.checked("w0", 2.0, now=0.0)  # whatever they found
    with pytest.raises(TrajectoryError, match="its 0 episodes took 12 s of the host to check, more than 4 times"):
        shares.check("w0", 1)
    files, posted = Slow(), list[WorkerEvent]()
    transfers = transfers_of(files, "w0", posted.append, posted.append, shares)
    ask(transfers, Path("unused"), 0, size=1)
    assert isinstance(posted[0], PullRefused) and not files.batches


def test_counted_where_seconds_are_meant_a_costly_worker_waits_and_the_others_do_not() -> None:
    shares = Shares()
    for worker in ("w1", "w2"):
        bring(shares, worker, 10, MIB)
    for _ in range(4):
        shares.checked("w0", 0.54, now=100.0)  # half a second more than is usual
    assert shares.wait_s("w0", now=100.0) == pytest.approx(20.0)
    assert shares.wait_s("w0", now=110.0) == pytest.approx(10.0) and not shares.wait_s("w0", now=120.1)
    assert not shares.wait_s("w1", now=100.0) and not shares.wait_s("nobody", now=100.0)
    posted, files = queue.SimpleQueue[WorkerEvent](), Quick()
    transfers = transfers_of(files, "w0", posted.put, posted.put, shares)
    shares.checked("w0", 0.54, now=time.monotonic())
    for _ in range(4):
        shares.checked("w0", 0.54, now=time.monotonic())
    ask(transfers, Path("unused"), 0, size=1)
    assert isinstance(posted.get(timeout=60), Throttled)
    transfers.close()  # what was asked for is carried
    assert isinstance(posted.get(timeout=60), PullRefused | WorkerError)


def test_a_liar_with_tiny_episodes_makes_no_other_worker_look_expensive() -> None:
    shares = Shares()
    bring(shares, "liar", 10_000, 1, seconds=0.0)
    for worker in ("w1", "w2"):
        assert bring(shares, worker, 500, MIB, seconds=1.0) == 500
    assert bring(Shares(), "alone", 10_000, MIB) == 10_000
