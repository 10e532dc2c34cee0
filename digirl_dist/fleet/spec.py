"""What a worker is, and what it is to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.protocol.job_folder import encode
from digirl_dist.rollout.slot import SlotLimits
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
    """What one emulator takes …"""
    sharers: int = 1
    """… of a machine that so many workers share, for workers that choose how many slots they have."""

    answer_s: float = 600.0

    def blobs(self) -> dict[str, bytes]:
        return {digest(packed): packed for packed in (self.agent, self.emulator) if packed is not None}

    def message(self, spec: Spec) -> bytes:
        return encode(
            "job",
            name=spec.name,
            agent=None if self.agent is None else digest(self.agent),
            answer_s=self.answer_s,
            emulator=digest(self.emulator),
            slots=spec.slots,
            needs=asdict(self.needs),
            sharers=self.sharers,
            max_steps=self.max_steps,
            limits=asdict(self.limits),
            torch_threads=self.torch_threads,
        )
