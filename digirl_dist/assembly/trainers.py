"""How updates are made: in this process alone, or as one of the ranks of its launch; and the launch of a host's ranks.

With ``trainer=torchrun`` the host is started again, once for each rank, by this package's launcher. Rank 0 is the host,
and the others make each update with it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.assembly.agreement import agree
from digirl_dist.assembly.parts import build_algorithm, device_of, refuse_devices, run_root, starting
from digirl_dist.assembly.policy import describe_policy
from digirl_dist.emulator.plugins import Device
from digirl_dist.exit_status import WORDS
from digirl_dist.parallel.launch import launch
from digirl_dist.parallel.peers import Alone, Peers, SharedRows
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import Settings, TorchrunSettings, TrainMode
from digirl_dist.settings.run import only_measures
from digirl_dist.storage.checkpoint import Checkpoints

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.parallel.group import Group
    from digirl_dist.storage.disk_full import WritePolicy
    from digirl_dist.storage.status import Status
    from digirl_dist.storage.trajectory_store import Store
    from digirl_dist.trainer import Trainer
    from digirl_dist.trainer.inprocess import InProcessTrainer

_IDLE_S = 86_400.0
"""Longest time between two updates, while the host collects."""
_BY_A_PERSON = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@dataclass(frozen=True)
class Learning:
    """What learns in this run, on any rank."""

    settings: Settings
    device: Device
    agent: AgentFactory
    rank: Rank | None
    """None in a process that no launcher started."""
    status: Status
    """Is told how far an update is."""

    @property
    def is_joint(self) -> bool:
        """Whether the ranks of a launch make each update."""
        is_asked_for = isinstance(self.settings.trainer, TorchrunSettings)
        is_launched = self.rank is not None and (self.rank.world_size > 1 or is_asked_for)
        return is_launched and not only_measures(self.settings)

    def checkpoints(self, write_policy: WritePolicy | None = None) -> Checkpoints:
        settings = self.settings
        return Checkpoints(
            run_root(settings) / "checkpoints",
            settings.save_freq,
            settings.keep_checkpoints,
            in_use=settings.ahead,
            write_policy=write_policy,
            policy=describe_policy(settings, self.device.spec),
        )

    def trainer(self, stack: ExitStack, write_policy: WritePolicy) -> Trainer:
        """Returns the trainer of the host; ``stack`` leaves the other ranks at the end."""
        checkpoints = self.checkpoints(write_policy)
        if not self.is_joint:
            return self._alone(checkpoints)
        from digirl_dist.trainer.joint import JointTrainer

        group, member = self._joined(stack, checkpoints)
        return JointTrainer(member, group, self._store(), lambda: self._alone(checkpoints))

    def follow(self) -> None:
        """Makes this rank's share of every update, until rank 0 ends."""
        if not self.is_joint:
            return
        from digirl_dist.trainer.joint import follow

        with ExitStack() as stack:
            group, member = self._joined(stack, self.checkpoints())
            follow(member, group, self._store(), _IDLE_S)

    def _joined(self, stack: ExitStack, checkpoints: Checkpoints) -> tuple[Group, InProcessTrainer]:
        """Joins the other ranks. Raises SettingsError if they were started with other settings or versions."""
        from digirl_dist.agent.placement import Placed
        from digirl_dist.parallel.group import GroupLimits, joined

        trainer, rank = self.settings.trainer, self.rank or Rank()
        device = device_of(self.settings, rank)
        limits = GroupLimits(exchange_s=trainer.exchange_s, gate_s=_IDLE_S)
        group = stack.enter_context(joined(rank, device, limits))
        agree(group, self.settings, self.device)
        agent = starting(self.settings, self.agent)
        if not (isinstance(trainer, TorchrunSettings) and trainer.shard):
            return group, self._trainer(Placed(agent, device), SharedRows(group, self.status.stepped), checkpoints)
        from digirl_dist.agent.sharding import Sharded, ShardedRows

        sharded = Sharded(agent, group, device, tuple(trainer.shard_blocks))
        return group, self._trainer(sharded, ShardedRows(group, self.status.stepped), checkpoints)

    def _alone(self, checkpoints: Checkpoints) -> InProcessTrainer:
        from digirl_dist.agent.placement import Placed

        agent = Placed(starting(self.settings, self.agent), device_of(self.settings, self.rank))
        return self._trainer(agent, Alone(self.status.stepped), checkpoints)

    def _trainer(self, agent: AgentFactory, peers: Peers, checkpoints: Checkpoints) -> InProcessTrainer:
        from digirl_dist.storage.datasets import read_datasets
        from digirl_dist.trainer.inprocess import InProcessTrainer

        settings = self.settings
        offline = () if settings.train_mode is TrainMode.online else tuple(settings.offline.data)
        return InProcessTrainer(
            agent,
            build_algorithm(settings, self.device),
            checkpoints,
            settings.trainer.replay_size,
            settings.seed,
            peers,
            read_datasets(offline) if offline else (),
        )

    def _store(self) -> Store:
        from digirl_dist.storage.trajectory_store import Store

        return Store(run_root(self.settings) / "trajectories")


def starts_ranks(settings: Settings, rank: Rank | None) -> bool:
    """Returns whether this process is to start the host's ranks, and to do nothing else."""
    return rank is None and isinstance(settings.trainer, TorchrunSettings) and not only_measures(settings)


def on_ranks(settings: Settings, words: Sequence[str]) -> int:
    """Runs ``digirl-dist run`` with these words as the ranks of the host; returns the exit status. Raises DeviceError.

    The words may hold secrets, which other users would see among the arguments of a process.
    """
    refuse_devices(settings)
    assert isinstance(settings.trainer, TorchrunSettings)
    count, grace_s = settings.trainer.nproc_per_node, 2 * settings.limits.stop_s
    program, variables = ["-m", "digirl_dist", "run"], {WORDS: json.dumps(list(words))}
    return launched_again(lambda: launch(count, program, variables, grace_s), run_root(settings))


def launched_again(launch_ranks: Callable[[], int], root: Path) -> int:
    """Launches the ranks of the run in ``root``, and once more where an update broke off, which then begins by sifting.

    Returns the exit status of the last launch. It is the last one if a person ended it, or if an update that was
    sifted broke off again.
    """
    from digirl_dist.storage.trajectory_store import Store

    sifted: int | None = None
    while True:
        status = launch_ranks()
        newest = Checkpoints(root / "checkpoints").newest()
        is_suspect = newest is not None and Store(root / "trajectories").refused.is_suspect(newest.iteration)
        if status in {0, *_BY_A_PERSON} or newest is None or not is_suspect or newest.iteration == sifted:
            return status
        sifted = newest.iteration
        sys.stderr.write(f"the update of iteration {sifted} broke off; the ranks start again and look for the cause\n")
