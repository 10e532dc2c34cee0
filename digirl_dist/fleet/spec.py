"""What a worker is, and what it is to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.fleet.ledger import Shares
from digirl_dist.protocol.messages import SlotLimits, StartJob
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.storage.digest import digest

Installer = Callable[[Connection], list[str]]
"""Makes the package usable on a worker and returns the command that runs its Python."""


class Spec(Protocol):
    """One worker, however it is reached."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int | None: ...

    @property
    def package(self) -> str:
        """Digest of the package on the worker; empty: the host's own."""


@dataclass(frozen=True)
class WorkerSpec:
    """One worker over SSH as the configuration describes it."""

    address: Address
    slots: int | None
    """None: the worker chooses by its cores and memory."""
    folder: str
    """The job folder on the worker; may start with ``~/``."""
    install: Installer
    install_limit_s: float = 0.0
    package: str = ""
    """Digest of the package that ``install`` provides; a program that runs another one is replaced."""
    site: str | None = None
    """Workers of one site pass tensors on to each other."""
    site_address: tuple[str, int] | None = None
    """Host and port at which they reach this one; None: the host's own way."""

    @property
    def name(self) -> str:
        return self.address.name


@dataclass(frozen=True)
class Job:
    """What a worker does, the same in every iteration. ``agent`` and ``emulator`` are packed factories.

    Without an agent, the worker asks the host for each action, and waits ``answer_s`` for it.
    """

    run: str
    agent: bytes | None
    emulator: bytes
    max_steps: int | None
    limits: SlotLimits
    torch_threads: int
    orphan_s: float
    needs: Needs = TYPICAL
    """What one emulator takes of a machine, for workers that choose how many slots they have."""
    sharers: int = 1
    """Workers that share the machine."""
    answer_s: float = 600.0
    host: str = ""
    """Tells this process from others of the run; empty: it is told from none."""
    guard: EpisodeGuard = field(default_factory=EpisodeGuard)
    """Checks what the worker brings."""
    shares: Shares = field(default_factory=Shares)
    """Those of the whole fleet."""

    def blobs(self) -> dict[str, bytes]:
        return {digest(packed): packed for packed in (self.agent, self.emulator) if packed is not None}

    def message(self, spec: Spec) -> StartJob:
        """Returns the message that describes the job to a worker."""
        return StartJob(
            name=spec.name,
            agent=None if self.agent is None else digest(self.agent),
            emulator=digest(self.emulator),
            limits=self.limits,
            slots=spec.slots,
            needs=self.needs,
            sharers=self.sharers,
            max_steps=self.max_steps,
            torch_threads=self.torch_threads,
            answer_s=self.answer_s,
        )
