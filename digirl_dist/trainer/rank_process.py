"""One rank of the host's group: ``python -m digirl_dist.trainer.rank_process FOLDER``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.placement import Placed
from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.child_process import environment
from digirl_dist.errors import DigirlDistError, SettingsError
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.parallel.agreement import agree
from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices
from digirl_dist.parallel.failure import say, telling
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.peers import ALONE, Peers, SharedRows
from digirl_dist.parallel.rank import Rank, own_rank
from digirl_dist.storage import atomic_files
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.datasets import read_datasets
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.joint import JointTrainer, TrainerFactory, follow
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack, unpack_file

_SIFT = "--sift"


@dataclass(frozen=True)
class TrainerSpec:
    """The parameters that a rank needs to learn with the others."""

    agent: AgentFactory
    algorithm: AlgorithmFactory
    checkpoints: Checkpoints
    trajectories: Path
    replay_size: int
    offline: tuple[str, ...]
    """Files and folders of offline trajectories; every rank reads them."""
    seed: int
    max_staleness: int | None
    device: str
    limits: GroupLimits
    idle_s: float
    shard: tuple[str, ...] | None = None
    """Modules that are gathered by themselves when the agent is sharded over the ranks (see ``agent.sharding``); None:
    no sharding."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What all ranks must have been started with."""

    def device_of(self, rank: Rank | None) -> str:
        """Returns the device on which a process learns. Raises DeviceError."""
        return resolve_device(DeviceRequest(self.device), rank, visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES")))

    @contextmanager
    def joined(self, rank: Rank) -> Iterator[tuple[TrainerFactory, Group]]:
        """Joins the other ranks; yields the factory of this rank's trainer and the group.

        Raises SettingsError if they were started with other ``facts``.
        """
        device = self.device_of(rank)
        with joined(rank, device, self.limits) as group:
            agree(group, self.facts)
            yield partial(self._member, device), group

    def alone(self, rank: Rank | None) -> InProcessTrainer:
        """Returns the trainer of a process without peers."""
        return self._trainer(Placed(self.agent, self.device_of(rank)), ALONE)

    def sift_if_suspect(self, log: Path, limit_s: float) -> tuple[RefusedEpisode, ...]:
        """Where the newest checkpoint's update ended ranks, makes it in one process, which finds what breaks it.

        Whatever else that process meets, the ranks will meet and tell. Returns the episodes that it set aside.
        """
        newest, refused = self.checkpoints.newest(), Store(self.trajectories).refused
        if newest is None or not refused.is_suspect(newest.iteration):
            return ()
        before = refused.all()
        with TemporaryDirectory(prefix="digirl-dist-sifting-") as name, atomic_files.opened_to_append(log) as out:
            RankFolder(Path(name)).trainer_spec.write_bytes(pack(self))
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [sys.executable, "-m", "digirl_dist.trainer.rank_process", name, _SIFT],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    timeout=limit_s,
                    env=environment(),
                )
        refused.clear()
        return tuple(one for one in refused.all() if one not in before)

    def _member(self, device: str, group: Group) -> InProcessTrainer:
        if self.shard is None:
            return self._trainer(Placed(self.agent, device), SharedRows(group))
        from digirl_dist.agent.sharding import Sharded, ShardedRows

        return self._trainer(Sharded(self.agent, group, device, self.shard), ShardedRows(group))

    def _trainer(self, agent: AgentFactory, peers: Peers) -> InProcessTrainer:
        offline = read_datasets(self.offline) if self.offline else ()
        return InProcessTrainer(
            agent, self.algorithm, self.checkpoints, self.replay_size, self.seed, peers, offline, self.max_staleness
        )


@dataclass(frozen=True)
class RankFolder:
    """The folder that host and group share beside the run folder."""

    root: Path

    @property
    def trainer_spec(self) -> Path:
        """The file with the packed TrainerSpec; only the host writes it."""
        return self.root / "learning"

    @property
    def address(self) -> str:
        """The Unix socket on which the host waits for rank 0."""
        return str(self.root / "host.sock")

    def listen(self) -> socket.socket:
        """Opens the host's listening socket."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(1)
        return listener

    def connect(self) -> Connection:
        """Connects rank 0 to the host."""
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(self.address)
            return Connection(ours.detach())


def sift_alone(folder: RankFolder) -> None:
    """Makes the newest checkpoint's update, as a group of ranks would, in this process; sets aside what breaks it."""
    trainer_spec: TrainerSpec = unpack_file(folder.trainer_spec)
    trainer = trainer_spec.alone(None)
    trainer.learn(trainer.resume(), Store(trainer_spec.trajectories))


def main(folder: RankFolder) -> None:
    """Learns with the other ranks until the host ends; reports failures with the rank."""
    rank = own_rank(os.environ)
    try:
        with telling(rank):
            _learn(rank, folder)
    except SettingsError as error:
        say(rank, f"failed: {error}\n")  # nobody else does here
        raise


def _learn(rank: Rank, folder: RankFolder) -> None:
    trainer_spec: TrainerSpec = unpack_file(folder.trainer_spec)
    with trainer_spec.joined(rank) as (trainer, group):
        if rank.is_first:
            with folder.connect() as host:
                _serve(host, JointTrainer(trainer, group), trainer_spec)
        else:
            follow(trainer, group, Store(trainer_spec.trajectories), trainer_spec.idle_s)


def _serve(host: Connection, trainer: JointTrainer, trainer_spec: TrainerSpec) -> None:
    """Answers the host's orders until the host closes the connection or ends."""
    store = Store(trainer_spec.trajectories)
    while True:
        try:
            order = json.loads(host.recv_bytes())
        except EOFError:
            trainer.close()
            return
        try:
            answer = _answer(order, trainer, trainer_spec, store)
        except DigirlDistError as error:
            host.send_bytes(json.dumps({"error": str(error)}).encode())
            raise
        host.send_bytes(json.dumps(answer).encode())


def _answer(order: Json, trainer: JointTrainer, trainer_spec: TrainerSpec, store: Store) -> Json:
    if order is None:
        return {"iteration": trainer.resume().iteration}
    update = trainer.update(trainer_spec.checkpoints.open(order), store)
    return {
        "iteration": update.checkpoint.iteration,
        "figures": update.figures,
        "started_at": update.started_at,
        "learned_at": update.learned_at,
    }


if __name__ == "__main__":
    end_without_a_search_for_garbage()
    if sys.argv[2:] == [_SIFT]:
        sift_alone(RankFolder(Path(sys.argv[1])))
        sys.exit(0)
    try:
        main(RankFolder(Path(sys.argv[1])))
    except Exception:
        sys.exit(1)  # already reported, with the rank
