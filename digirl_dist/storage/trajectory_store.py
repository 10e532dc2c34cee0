"""The trajectories of a run folder: single episodes of the current iteration, and one file per finished iteration.

``trajectories/.landing/NNNNNN/`` holds single episodes of the current iteration; at its end they become
``trajectories/NNNNNN.parquet``. An episode that landed is durable and never runs again. Episodes that evaluate policy
version NNNNNN during training (purpose ``evaluate``) go to ``evaluation/NNNNNN/training.parquet``, and those of round
RRRRRR of measuring it (purpose ``measure``) to ``evaluation/NNNNNN/RRRRRR.parquet``, so that readers of the
trajectories folder meet none of them. Episodes that broke an update move to ``trajectories/.refused/`` (see
``refused_episodes``).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from digirl_dist.collection import CollectionResult
from digirl_dist.errors import TrajectoryError
from digirl_dist.parallel.rank import Rank
from digirl_dist.storage import atomic_files, episode_file, parquet
from digirl_dist.storage.disk_full import FailFast, WritePolicy
from digirl_dist.storage.refused_episodes import RefusedEpisode, RefusedEpisodes
from digirl_dist.tasks import Key, Purpose, Round
from digirl_dist.trajectory import Trajectory

_LANDING: dict[str, Purpose] = {"": "train", "evaluate": "evaluate", "measure": "measure"}
"""Folders below ``.landing`` with those of rounds, see ``_name``."""


class Store:
    """Reads and writes the trajectories below ``root``; ``write_policy`` applies while the disk is full.

    To open one changes nothing, as others may be at work there.
    """

    def __init__(self, root: Path, write_policy: WritePolicy | None = None) -> None:
        self.root = root
        self._write_policy = write_policy or FailFast()
        self._landing = root / ".landing"
        self._incoming = self._landing / "incoming"
        """Shared by all iterations."""
        self.refused = RefusedEpisodes(root / ".refused", self._write_policy)
        self._recent: dict[int, Sequence[Trajectory]] = {}
        """The iteration that was appended or read last, and those of the last replay."""
        self._replayed: Collection[int] = ()
        self._landed: dict[Round, dict[Key, Trajectory]] = {}
        self._unflushed: set[Path] = set()
        """Folders in which files have landed since ``flush``."""
        self._lock = threading.Lock()

    def sweep(self) -> None:
        """Deletes what a killed host left: unchecked transfers, single episodes that a round's file has, and parts of
        such files.

        Only for the host that holds the run folder.
        """
        shutil.rmtree(self._incoming, ignore_errors=True)
        for wanted in self._landing_rounds():
            if self.has(wanted):
                shutil.rmtree(self._landing / _name(wanted), ignore_errors=True)
        for measured in (self.root.parent / "evaluation").glob("[0-9]*"):
            atomic_files.sweep(measured)

    def incoming(self, counts_in: Round, name: str) -> Path:
        """Returns the path for an unchecked transfer."""
        self._write_policy.wait_for(str(self._incoming), lambda: self._incoming.mkdir(parents=True, exist_ok=True))
        return self._incoming / f"{counts_in.purpose}-{counts_in.number:06d}-{name}"

    def land(self, counts_in: Round, trajectory: Trajectory, checked: Path | bytes | None = None) -> bool:
        """Stores an episode of this round. Returns False if the round is closed or the ticket has landed.

        Moves ``checked``, a flushed file with exactly this episode, into place: the move is durable after ``flush``.
        Otherwise writes the episode, or its file's content where that is given; it is durable then.
        """
        key = trajectory.ticket.key
        path = self._landing / _name(counts_in) / _file_name(key)
        with self._lock:
            landed = self._known(counts_in)
            if key in landed or self.has(counts_in):
                return False
            self._write_policy.wait_for(str(path.parent), lambda: path.parent.mkdir(parents=True, exist_ok=True))
            if isinstance(checked, Path):
                self._write_policy.wait_for(str(path), lambda: atomic_files.replace(checked, path, flushed=False))
                self._unflushed.add(path.parent)
            else:
                content = checked or episode_file.encode(trajectory)
                self._write_policy.wait_for(str(path), lambda: atomic_files.write_bytes(path, content))
            landed[key] = trajectory
        return True

    def leave_aside(self, counts_in: Round, episode: Trajectory) -> None:
        """Moves an episode that had landed out of its round, for which its ticket runs again."""
        key, aside = episode.ticket.key, self._landing / "aside"
        path = self._landing / _name(counts_in) / _file_name(key)
        with self._lock:
            self._write_policy.wait_for(str(aside), lambda: aside.mkdir(parents=True, exist_ok=True))
            kept = aside / f"{counts_in.purpose}-{time.time_ns()}-{path.name}"
            self._write_policy.wait_for(str(kept), lambda: atomic_files.replace(path, kept, flushed=False))
            self._known(counts_in).pop(key, None)

    def leave_beyond(self, newest: int) -> Path | None:
        """Moves aside what policies after ``newest``, whose checkpoints are gone, have left; returns where it is.

        No crash leaves such things: somebody went back. Of a round that is not over, one such episode takes all along.
        """
        run, landing = self.root.parent, self._landing
        folders = self.root, run / "evaluation", landing / "evaluate", landing / "measure"
        ended = [each for one in folders for each in one.glob("[0-9]*") if each.name[:6] > f"{newest:06d}"]
        rounds = {number: self.landed(Round(number)).values() for number in self.unfinished()}
        newer = [number for number in rounds if any(one.ticket.policy_version > newest for one in rounds[number])]
        aside = landing / "aside" / f"after-{newest:06d}-{time.time_ns()}"
        for path in (beyond := [*ended, *(landing / _name(Round(number)) for number in newer)]):
            self._write_policy.wait_for(str(aside), partial(os.renames, path, aside / path.relative_to(run)))
        self._landed.clear()
        return aside if beyond else None

    def unfinished(self) -> list[int]:
        """Returns the iterations of which episodes have landed, and that have no file yet."""
        landing = (wanted for wanted in self._landing_rounds() if wanted.purpose == "train")
        return sorted(wanted.number for wanted in landing if not self.has(wanted))

    def _landing_rounds(self) -> Iterator[Round]:
        for name, purpose in _LANDING.items():
            for path in (self._landing / name).glob("[0-9]*"):
                measured, _, number = path.name.rpartition("-")
                if number.isdecimal() and (measured or "0").isdecimal():
                    yield Round(int(number), purpose, int(measured or 0))

    def flush(self) -> None:
        """Makes durable what has landed, all of it at once: each flush is a turn of the disk."""
        with self._lock:
            for folder in self._unflushed:
                self._write_policy.wait_for(str(folder), partial(atomic_files.flush, folder))
            self._unflushed.clear()

    def landed(self, wanted: Round) -> dict[Key, Trajectory]:
        """Returns the durable episodes of the round."""
        with self._lock:
            return dict(self._known(wanted))

    def append(self, result: CollectionResult) -> None:
        """Writes the round's file, unless the result is empty. Idempotent."""
        path = self._file(result.round)
        if result.trajectories and not path.exists():
            self._write_policy.wait_for(str(path), lambda: path.parent.mkdir(parents=True, exist_ok=True))
            self._write_policy.wait_for(str(path), lambda: parquet.write(path, result.trajectories))
        with self._lock:
            shutil.rmtree(self._landing / _name(result.round), ignore_errors=True)
            self._unflushed.discard(self._landing / _name(result.round))
            self._landed.pop(result.round, None)
        if result.purpose == "train":
            self._remember(result.iteration, result.trajectories)
        result.stored_at = time.monotonic()

    def reopen(self, measured: Round) -> None:
        """Has a round of a measurement accept episodes again; those of its file have landed, as before it ended."""
        folder, ended = self._landing / _name(measured), self._file(measured)
        self._write_policy.wait_for(str(folder), lambda: folder.mkdir(parents=True, exist_ok=True))
        for key, episode in self.landed(measured).items():
            written = partial(atomic_files.write_bytes, folder / _file_name(key), episode_file.encode(episode))
            self._write_policy.wait_for(str(folder), written)
        ended.unlink()
        atomic_files.flush(ended.parent)

    def has(self, wanted: Round) -> bool:
        """Returns whether the round's file exists, so that it accepts no more; offline iterations have none."""
        return self._file(wanted).exists()

    def read(self, iteration: int) -> Sequence[Trajectory]:
        """Returns the episodes of a finished iteration, in the order of their tickets."""
        if iteration not in self._recent:
            with _with_remedy("restore it, or start another run"):
                self._remember(iteration, parquet.read(self._file(Round(iteration))))
        return self._recent[iteration]

    def _remember(self, iteration: int, episodes: Sequence[Trajectory]) -> None:
        """Keeps the episodes in memory, beside those that a reader replays: others' are in their files."""
        self._recent = {kept: self._recent[kept] for kept in self._recent if kept in self._replayed}
        self._recent[iteration] = episodes

    def replay(self, until: int, capacity: int) -> list[Trajectory]:
        """Returns the newest ``capacity`` episodes of iterations up to and including ``until``, oldest first.

        Iterations without a file are passed over. Those that it read stay in memory for the next call.
        """
        newest: list[Trajectory] = []
        kept: dict[int, Sequence[Trajectory]] = {}
        stored = (number for number in range(until, -1, -1) if self.has(Round(number)))
        while len(newest) < capacity and (iteration := next(stored, None)) is not None:
            newest = [*self.read(iteration), *newest]
            kept[iteration] = self._recent[iteration]
        self._recent, self._replayed = kept, kept.keys()
        return newest[-capacity:]

    def refuse(self, episodes: Sequence[Trajectory], reason: str) -> tuple[RefusedEpisode, ...]:
        """Moves episodes that ``read`` returned out of their iterations' files. Idempotent."""
        refused = tuple(self.refused.add(episode, reason) for episode in episodes)
        gone = set(map(id, episodes))
        for iteration, before in self._recent.items():
            path, kept = self._file(Round(iteration)), [one for one in before if id(one) not in gone]
            if len(kept) < len(before):
                self._write_policy.wait_for(str(path), partial(parquet.write, path, kept))
                self._recent[iteration] = kept
        return refused

    def _known(self, wanted: Round) -> dict[Key, Trajectory]:
        """Returns the landed episodes; reads their folder once. Does not cache those of a finished round's file."""
        if self._file(wanted).exists():
            found = self.read(wanted.number) if wanted.purpose == "train" else self._measured(wanted)
            return {trajectory.ticket.key: trajectory for trajectory in found}
        if wanted not in self._landed:
            folder = self._landing / _name(wanted)
            with _with_remedy("remove it, and its episode runs again"):
                found = [episode_file.read(path) for path in sorted(folder.glob("*" + episode_file.SUFFIX))]
            self._landed[wanted] = {trajectory.ticket.key: trajectory for trajectory in found}
        return self._landed[wanted]

    def _measured(self, wanted: Round) -> Sequence[Trajectory]:
        with _with_remedy("remove it, and its episodes run again"):
            return parquet.read(self._file(wanted))

    def _file(self, wanted: Round) -> Path:
        if wanted.purpose == "train":
            return self.root / f"{wanted.number:06d}.parquet"
        version, name = wanted.number, "training"
        if wanted.purpose == "measure":
            version, name = wanted.measured, f"{wanted.number:06d}"
        return self.root.parent / "evaluation" / f"{version:06d}" / f"{name}.parquet"


@contextmanager
def _with_remedy(remedy: str) -> Iterator[None]:
    """Raises a TrajectoryError of the block with what can be done about the file that it names."""
    try:
        yield
    except TrajectoryError as error:
        raise TrajectoryError(f"{error}; {remedy}") from error


def _file_name(key: Key) -> str:
    return f"{key.iteration:06d}-{key.number:05d}{episode_file.SUFFIX}"


def _name(wanted: Round) -> str:
    """Returns the folder of a round below ``.landing``."""
    match wanted:
        case Round(number, "measure", version):
            return f"measure/{version:06d}-{number:06d}"
        case Round(number, "evaluate"):
            return f"evaluate/{number:06d}"
    return f"{wanted.number:06d}"


def of_rank(trajectories: Sequence[Trajectory], rank: Rank) -> list[Trajectory]:
    """Returns the trajectories to which this rank assigned their index."""
    return [each for each in trajectories if each.ticket.index % rank.world_size == rank.rank]


def newest_of_each_rank(store: Store, before: int, capacity: int, world_size: int) -> list[Trajectory]:
    """Returns the newest ``capacity`` episodes of every rank from iterations below ``before``; a rank's oldest first.

    Iterations in which no episode ended have no file and are passed over.
    """
    kept: dict[Rank, list[Trajectory]] = {Rank(rank, world_size): [] for rank in range(world_size)}
    for iteration in reversed(range(before)):
        if all(len(own) >= capacity for own in kept.values()):
            break
        brought = store.read(iteration) if store.has(Round(iteration)) else ()
        kept = {rank: [*of_rank(brought, rank), *own][-capacity:] for rank, own in kept.items()}
    return [each for own in kept.values() for each in own]
