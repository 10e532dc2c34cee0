"""A full disk of the host is a pause for whatever must be written."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from process_watch import eventually
from user_classes import Coin, Counter

from chaos.machine import Disk
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import RunFolderError
from digirl_dist.report.loggers import LoggedRun
from digirl_dist.report.loggers.tensorboard import TensorBoard
from digirl_dist.report.metrics import Metrics
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.disk_full import FailFast, WaitForSpace
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


class SmallDisk(Disk):
    """A small disk, and the policy of waiting until it has room; what that told is in ``said``."""

    def __init__(self, folder: Path, notes: Path) -> None:
        super().__init__(folder, "1m")
        self.said: list[str] = []
        self.events = Events(notes / "events.jsonl", (self._listen,))
        self.write_policy = WaitForSpace(self.events, Status(notes / "status.json"), limit_s=20.0)

    def _listen(self, kind: str, content: dict[str, Any]) -> None:
        self.said.append(f"{kind}: {content['reason']}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("only root can make a small disk")
    disk = SmallDisk(tmp_path / "disk", tmp_path)
    yield disk
    disk.close()


def trajectory(index: int) -> Trajectory:
    seen = Observation("x" * 3000, None, None)
    return Trajectory(
        Ticket(0, index, Task("t"), 0, 0), f"e{index}", "w", 0, [Step(seen, 1, 0.0, 1.0, True, False)], seen, True
    )


def save_checkpoint(disk: SmallDisk) -> object:
    state = {**Coin(Counter.spec).state_dict(), "much": torch.rand(20_000)}
    Checkpoints(disk.folder / "checkpoints", write_policy=disk.write_policy).save(
        1, state, {"state": torch.rand(20_000)}, {}
    )
    newest = Checkpoints(disk.folder / "checkpoints").newest()
    assert newest is not None and torch.equal(newest.state()["much"], state["much"])
    return newest.trainer_state()


def rate_checkpoint(disk: SmallDisk) -> object:
    (disk.folder / "000001").mkdir()
    checkpoints, rated = Checkpoints(disk.folder, write_policy=disk.write_policy), Checkpoint(disk.folder, 1, {})
    checkpoints.rate(rated, 1 / 3)
    assert (disk.folder / "best").resolve().name == "000001"
    return rated


def append_metrics(disk: SmallDisk) -> object:
    metrics = Metrics(disk.folder / "metrics.jsonl", disk.write_policy)
    metrics.append({"iteration": 0, "text": "x" * 9000})
    assert Metrics(metrics.path).lines == metrics.lines
    return metrics


def append_harvest(disk: SmallDisk) -> object:
    store = Store(disk.folder / "trajectories", disk.write_policy)
    store.append(CollectionResult(0, [trajectory(index) for index in range(5)]))
    assert len(store.landed(Round(0))) == 5
    return store


def land_episode(disk: SmallDisk) -> object:
    store = Store(disk.folder / "trajectories", disk.write_policy)
    assert store.land(Round(0), trajectory(0)) and not store.land(Round(0), trajectory(0))
    return store


@pytest.mark.component
@pytest.mark.parametrize("write", [save_checkpoint, rate_checkpoint, append_metrics, append_harvest, land_episode])
def test_what_cannot_be_written_waits_for_room(disk: SmallDisk, write: Callable[[SmallDisk], object]) -> None:
    disk.fill()
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(write(disk)))
    thread.start()
    eventually(lambda: disk.said, 10, "the report of the full disk")
    time.sleep(0.3)
    assert not done and "No space left" in disk.said[0]
    disk.make_room()
    thread.join(120)
    assert done


@pytest.mark.component
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of tensorboard's writer
def test_curves_go_on_after_a_full_disk(disk: SmallDisk) -> None:
    curves = TensorBoard(LoggedRun("run1", "run", disk.folder, "project", {}))
    disk.fill()
    for iteration in range(300):
        curves.figures({f"figure {iteration % 30} {'x' * 200}": 1.0}, iteration)
    time.sleep(0.5)
    disk.make_room()
    for iteration in range(300, 310):
        curves.figures({"figure": 1.0}, iteration)
    curves.close()
    assert any(b"figure" in path.read_bytes() for path in (disk.folder / "tensorboard").iterdir())


def test_a_disk_that_stays_full_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    write_policy = WaitForSpace(Events(tmp_path / "events.jsonl"), Status(tmp_path / "status.json"), limit_s=0.2)

    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunFolderError, match=r"metrics cannot be written: No space left on device, for 0 s; free some"):
        write_policy.wait_for("metrics", write)


def test_other_errors_of_a_disk_are_not_waited_for(tmp_path: Path) -> None:
    write_policy = WaitForSpace(Events(tmp_path / "events.jsonl"), Status(tmp_path / "status.json"), limit_s=60.0)

    def write() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(RunFolderError, match="^metrics cannot be written: Permission denied$"):
        write_policy.wait_for("metrics", write)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """As a quota or a file system with small files does; Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", [save_checkpoint, rate_checkpoint, append_metrics, append_harvest, land_episode])
def test_what_the_file_system_refuses_is_refused_with_the_file(tmp_path: Path, write: Callable[[Any], object]) -> None:
    disk = SimpleNamespace(folder=tmp_path, write_policy=FailFast())
    with files_no_larger_than(50), pytest.raises(RunFolderError, match="cannot be written: .*File too large"):
        write(disk)


def test_so_is_the_part_of_a_checkpoint_that_pytorch_writes(tmp_path: Path) -> None:
    with files_no_larger_than(60_000), pytest.raises(RunFolderError, match="cannot be written: File too large"):
        Checkpoints(tmp_path).save(1, {"few": torch.zeros(9)}, {"state": torch.rand(200_000)}, {})
