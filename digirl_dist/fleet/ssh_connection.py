"""The way to a worker program over SSH: a control channel, and a courier for files."""

from __future__ import annotations

import threading

from digirl_dist.errors import LinkLostError, WorkerError, on_error
from digirl_dist.fleet.connection import ConnectProgress, Files
from digirl_dist.fleet.push import CourierFiles
from digirl_dist.fleet.relay import Relay, Relays
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.protocol.messages import MOST_BYTES
from digirl_dist.settings import LimitSettings, SshSettings
from digirl_dist.slurm.jobs import SlurmAddress
from digirl_dist.slurm.nodes import Nodes
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.courier import CourierClient

_LOGINS_AT_ONCE = 32
"""``sshd`` drops logins that come in large numbers (MaxStartups), and each costs the host some processor time."""


class SshConnector:
    """Logs in, installs the package if need be, and attaches to the worker program, which it starts if need be."""

    def __init__(
        self, ssh: SshSettings, limits: LimitSettings, nodes: Nodes | None = None, relays: Relays | None = None
    ) -> None:
        """``nodes`` brings the connections to workers that Slurm finds a node for."""
        self._nodes = nodes
        self._relays = relays
        self._logins = threading.BoundedSemaphore(_LOGINS_AT_ONCE)
        self._ssh = ssh
        self._limits = limits

    def connect(self, spec: WorkerSpec, job: Job, replace: bool, progress: ConnectProgress) -> SshWorkerConnection:
        connection = self._reach(spec.address, progress)
        with on_error(connection.close):
            progress("install or check the package", spec.install_limit_s, is_installing=True)
            python = spec.install(connection)
            progress("start the worker program and its emulators", self._limits.start_s)
            command = [*python, "-m", "digirl_dist.worker_program.attach", "--folder", spec.folder]
            options = ["--orphan-s", str(job.orphan_s), "--package", spec.package]
            control = connection.open([*command, *options, *(["--replace"] if replace else [])])
            courier = [*python, "-m", "digirl_dist.worker_program.courier", "--folder", spec.folder]
            files = CourierClient(connection.open(courier), self._ssh)
            relay = None if self._relays is None else self._relays.join(spec, connection, python)
            return SshWorkerConnection(connection, control, files, relay)

    def forget(self, worker: str) -> None:
        if self._nodes is not None:
            self._nodes.forget(worker)

    def _reach(self, address: Address, progress: ConnectProgress) -> Connection:
        if self._nodes is not None and isinstance(address, SlurmAddress):
            return self._nodes.connect(address, progress)
        with self._logins:
            progress("connect and log in", self._ssh.connect_s + self._ssh.login_s)
            return connect(address, self._ssh)


class SshWorkerConnection:
    """A ``WorkerConnection`` over one SSH connection."""

    def __init__(
        self, connection: Connection, control: Channel, courier: CourierClient, relay: Relay | None = None
    ) -> None:
        self.files: Files = CourierFiles(courier, relay=relay)
        self._relay = relay
        self._connection = connection
        self._control = control

    def write(self, line: bytes) -> None:
        self._control.write(line)

    def readline(self, timeout_s: float) -> bytes:
        return self._control.readline(timeout_s, MOST_BYTES)

    def read(self, size: int) -> bytes:
        return self._control.read_exactly(size)

    def answers(self) -> bool:
        return self._connection.answers()

    def why_ended(self) -> WorkerError:
        """Tells whether the link broke, or the relay, or the program behind it."""
        ended = self._control.ended()
        if self._control.exit_status != 0:
            return ended
        said = self._control.stderr_tail()
        return LinkLostError(
            self._control.worker, "the worker program ended" + (f"; it printed: {said}" if said else "")
        )

    def close(self) -> None:
        if self._relay is not None:
            self._relay.leave()
        self._connection.close()
