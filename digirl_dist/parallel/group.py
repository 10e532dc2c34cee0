"""The ranks of one launch: they meet, wait for each other, and exchange numbers and bytes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from digirl_dist.errors import DeviceError, PeerError
from digirl_dist.parallel.failure import telling_a_wait
from digirl_dist.parallel.loopback import refusing_strangers
from digirl_dist.parallel.rank import Rank, named, restarts, store_path
from digirl_dist.types import T

_LOOK_S = 0.03
_PIECE = 64 << 20
"""Bytes of one exchange."""
_STUCK_S = 2.0
_FAILED = "failed"
"""The key under which the first rank that fails says why."""


@dataclass(frozen=True)
class GroupLimits:
    """The longest waits, in seconds: for all ranks to start, for one exchange of numbers, and at a gate."""

    start_s: float = 180.0
    exchange_s: float = 600.0
    gate_s: float = 3600.0


class PrivateStore(FileStore):
    """Where ranks of one machine leave words for each other: a file in a private folder, which ``launch`` makes."""

    def __init__(self, path: Path, world_size: int, launcher: int) -> None:
        super().__init__(str(path), world_size)
        self._launcher = launcher

    def check(self, keys: list[str]) -> bool:
        """Returns whether all are set. Raises RuntimeError when the launcher, which would end this rank, is gone."""
        if os.getppid() != self._launcher:
            raise RuntimeError(f"process {self._launcher}, which started this rank, has ended")
        return bool(super().check(keys))


class Group:
    """All ranks of a launch. Every method must be called by every rank, in the same order."""

    def __init__(self, rank: Rank, store: Store, limits: GroupLimits) -> None:
        self.rank = rank
        self._store = store
        self._limits = limits
        self._gates = 0
        self._orders = 0

    def gate(self, what: str) -> None:
        """Waits until every rank has come here; ranks that collect or evaluate for different times meet at gates.

        Runs no collective, so none can time out meanwhile. Raises PeerError naming the ranks that did not come within
        ``gate_s``.
        """
        self._gates += 1
        name = f"gate/{self._gates}"
        self._store.set(f"{name}/{self.rank.rank}", "here")
        if self._gates > 1:
            self._store.delete_key(f"gate/{self._gates - 2}/{self.rank.rank}")
        missing = _missing(self._store, name, self.rank.world_size, self._limits.gate_s)
        if missing:
            raise PeerError(f"{named(missing)} did not come to {what!r} within {self._limits.gate_s:g} s")

    def announce(self, order: str) -> None:
        """Tells the other ranks, from rank 0, what is next; does not wait for them."""
        self._orders += 1
        self._store.set(f"order/{self._orders}", order)

    def announced(self, limit_s: float) -> str:
        """Returns what rank 0 announces next. Raises PeerError if it announces nothing for ``limit_s``, or is gone."""
        self._orders += 1
        if not all_set(self._store, [f"order/{self._orders}"], limit_s):
            raise PeerError(f"rank 0 gave rank {self.rank.rank} nothing to do for {limit_s:g} s")
        return self._store.get(f"order/{self._orders}").decode()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns ``tensor``, in place the sum over the ranks, with the same bits on each. Raises PeerError."""
        self._exchange(lambda: dist.all_reduce(tensor))
        return tensor

    def largest(self, number: int) -> int:
        """Returns the largest of the ranks' numbers. Raises PeerError."""
        found = torch.tensor([number])
        self._exchange(lambda: dist.all_reduce(found, dist.ReduceOp.MAX))
        return int(found)

    def broadcast(self, data: bytes) -> bytes:
        """Returns rank 0's bytes, on every rank. Raises PeerError."""
        self.gate("hear from rank 0")
        return self._exchange(lambda: _bytes_of_first(data))

    def gather(self, data: bytes) -> list[bytes]:
        """Returns every rank's bytes on rank 0, in the order of ranks, and nothing elsewhere. Raises PeerError."""
        self.gate("bring the results together")
        return self._exchange(lambda: _bytes_of_all(data))

    def check_in_step(self, digest: bytes) -> None:
        """Raises PeerError naming the ranks whose ``digest`` of weights, of one length on all, is not rank 0's."""
        own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        digests = self._exchange(lambda: _gathered(own))
        astray = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
        if astray:
            raise PeerError(f"the weights of {named(astray)} differ from rank 0's after an update")

    def tell_failure(self, error: Exception) -> None:
        """Leaves word of why this rank fails, which ends whatever other ranks wait for. The first word counts."""
        own = f"rank {self.rank.rank} failed: {type(error).__name__}: {str(error)[:1000]}"
        with suppress(RuntimeError):  # the store may be gone
            if not self._store.check([_FAILED]):
                self._store.set(_FAILED, str(error) if isinstance(error, PeerError) else own)

    def failed_exchange(self, error: RuntimeError) -> PeerError:
        """Returns the error for an exchange that failed with ``error``: names the ranks for which it did not fail."""
        try:
            self._store.set(f"stuck/{self.rank.rank}", "waited")
            missing = _missing(self._store, "stuck", self.rank.world_size, _STUCK_S)
        except RuntimeError:
            missing = [0]  # the store was there
        who = named(missing) if missing else "a rank"
        limit = f"the limit is {self._limits.exchange_s:g} s"
        return PeerError(f"{who} did not take part in an exchange, or left it ({limit}): {str(error)[:200]}")

    def _exchange(self, collective: Callable[[], T]) -> T:
        try:
            return collective()
        except RuntimeError as error:  # gloo and NCCL raise nothing finer
            raise self.failed_exchange(error) from error


@contextmanager
def joined(rank: Rank, device: str, limits: GroupLimits) -> Iterator[Group]:
    """Meets the other ranks, and leaves them at the end. Uses NCCL if ``device`` is CUDA, gloo otherwise.

    Raises PeerError naming the ranks that did not come, DeviceError if two ranks have the same CUDA device.
    """
    store = _meet(rank, limits.start_s)
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(device)
        _refuse_shared_devices(store, rank, str(torch.cuda.get_device_properties(device).uuid))
    with refusing_strangers() if isinstance(store, PrivateStore) else nullcontext():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            store=PrefixStore("group", store),
            rank=rank.rank,
            world_size=rank.world_size,
            timeout=timedelta(seconds=limits.exchange_s),
            device_id=torch.device(device) if on_cuda else None,
        )
    group = Group(rank, store, limits)
    try:
        yield group
    except Exception as error:
        group.tell_failure(error)
        raise
    finally:
        dist.destroy_process_group()


def _meet(rank: Rank, limit_s: float) -> Store:
    if rank.world_size == 1:
        return HashStore()  # nobody to meet, with or without a launcher
    with telling_a_wait(rank, limit_s, lambda: "the other ranks to start"):
        return _met(rank, limit_s)


def _met(rank: Rank, limit_s: float) -> Store:
    limit = timedelta(seconds=limit_s)
    try:
        store: Store
        if path := store_path(os.environ):
            store = PrivateStore(path, rank.world_size, os.getppid())
        else:  # torchrun keeps one store, in which a former attempt has left the addresses of its ranks
            found = next(rendezvous("env://", rank.rank, rank.world_size, timeout=limit))[0]
            store = PrefixStore(f"attempt/{restarts(os.environ)}", found)
    except (ValueError, RuntimeError) as error:
        raise PeerError(f"rank {rank.rank} cannot reach the launcher's meeting point: {error}") from error
    store.set(f"start/{rank.rank}", "here")
    missing = _missing(store, "start", rank.world_size, limit_s)
    if missing:
        raise PeerError(f"{named(missing)} did not start within {limit_s:g} s")
    return store


def _refuse_shared_devices(store: Store, rank: Rank, device: str) -> None:
    """Raises DeviceError if two ranks have one device. ``_meet`` came first, so every rank answers at once."""
    store.set(f"device/{rank.rank}", f"{device} of {socket.gethostname()}")
    owners: dict[str, int] = {}
    for other in range(rank.world_size):
        name = store.get(f"device/{other}").decode()
        if name in owners:
            raise DeviceError(
                f"ranks {owners[name]} and {other} have the same device, {name}; "
                f"start as many processes as there are devices (--nproc_per_node)"
            )
        owners[name] = other


def _missing(store: Store, name: str, world_size: int, limit_s: float) -> list[int]:
    """Returns the ranks that have not set their key below ``name`` within ``limit_s``."""
    keys = [f"{name}/{rank}" for rank in range(world_size)]
    if all_set(store, keys, limit_s):
        return []
    return [rank for rank, key in enumerate(keys) if not store.check([key])]


def all_set(store: Store, keys: Sequence[str], limit_s: float) -> bool:
    """Waits until all keys are set, and returns False after ``limit_s``.

    Raises PeerError if a rank says that it fails, or if the store is gone.
    """
    deadline, pause_s = time.monotonic() + limit_s, _LOOK_S / 32
    while True:
        try:
            if store.check(list(keys)):
                return True
            if store.check([_FAILED]):
                time.sleep(_STUCK_S)  # until it has said so itself, and its launcher has ended the others beside it
                raise PeerError(store.get(_FAILED).decode())
        except RuntimeError as error:
            raise PeerError(f"the launcher is gone: {error}") from error
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_S)


# Bytes do not pass through the store: that of torchrun takes 8 MiB at once, and a file would keep them all.


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the ranks' tensors, which have one shape, in the order of ranks."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def _bytes_of_first(data: bytes) -> bytes:
    """Returns rank 0's bytes, however many, on every rank."""
    size = torch.tensor([len(data)])
    dist.broadcast(size, 0)
    whole = _whole(data) if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8)
    for piece in _pieces(whole):
        dist.broadcast(piece, 0)
    return whole.numpy().tobytes()


def _bytes_of_all(data: bytes) -> list[bytes]:
    """Returns every rank's bytes, however many, on rank 0 in the order of ranks, and nothing elsewhere."""
    sizes = [int(size) for size in _gathered(torch.tensor([len(data)]))]
    if dist.get_rank():
        for piece in _pieces(_whole(data)):
            dist.send(piece, 0)
        return []
    return [data, *(_received(rank, size) for rank, size in enumerate(sizes[1:], 1))]


def _received(rank: int, size: int) -> bytes:
    whole = torch.empty(size, dtype=torch.uint8)
    for piece in _pieces(whole):
        dist.recv(piece, rank)
    return whole.numpy().tobytes()


def _whole(data: bytes) -> torch.Tensor:
    """Returns ``data`` as uint8, in memory that torch may write to."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _pieces(whole: torch.Tensor) -> Sequence[torch.Tensor]:
    """Returns views of a tensor, each small enough to be exchanged within the limit of an exchange; none if empty."""
    return torch.split(whole, _PIECE) if len(whole) else ()
