"""The ranks of a JAX launch as a ``Group``: they meet at JAX's coordinator, and exchange keys and values there.

Gradients do not pass here: XLA exchanges them, by gloo between CPUs and by NCCL between GPUs.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from jax._src import distributed  # the coordinator's store has no public name; Orbax uses this one as well
from torch._C._distributed_c10d import HashStore

from digirl_dist.errors import DeviceError, PeerError, RankError
from digirl_dist.parallel.group import Group, GroupLimits, KeyValueStore, all_set
from digirl_dist.parallel.rank import Rank, jax_coordinator
from digirl_dist.parallel.roll_call import roll_call
from digirl_dist.plain_text import in_short

_LINGER_S = 4.0
"""How long rank 0 stays after a failure, so that ranks of other nodes read why: JAX aborts them once it has gone."""
_EXCHANGES = re.compile("Gloo|NCCL")


@contextmanager
def joined(rank: Rank, device: str, limits: GroupLimits) -> Iterator[Group]:
    """Meets the other ranks, and leaves them at the end; JAX computes on ``device``: auto, cpu or cuda.

    Raises RankError without the JAX launcher's variables, PeerError if ranks do not come, DeviceError for a device
    that JAX does not have. Must come before any other use of JAX.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"trainer=jax knows the devices auto, cpu and cuda, not {device!r}; ranks choose their own")
    if device != "auto":
        jax.config.update("jax_platforms", device)
    store: KeyValueStore = HashStore()
    if rank.world_size > 1:
        store = _meet(rank, limits)
    group = Group(rank, store, StoreExchange(store, rank, limits.exchange_s), limits)
    try:
        _refuse_missing_device(device)
        with naming_who_is_missing(group):
            yield group
        group.gate("the end of the run")
    except BaseException as error:
        if isinstance(error, Exception):
            group.tell_failure(error)
        if rank.world_size > 1:
            atexit.register(_end_at_once, _LINGER_S if rank.is_first else 0.0)
        raise
    jax.distributed.shutdown()


def device_in_use() -> str:
    """Returns the device on which JAX computes, as ``cpu:0``."""
    (device, *_) = jax.local_devices()
    return f"{device.platform}:{device.local_hardware_id or 0}"


@contextmanager
def naming_who_is_missing(group: Group) -> Iterator[None]:
    """Raises PeerError in place of what XLA raises where an exchange of gradients failed."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXCHANGES.search(str(error)):
            raise group.failed_exchange(error) from error
        raise


def _end_at_once(linger_s: float) -> None:
    """Ends the process after a failure: JAX would wait for the other ranks when Python ends, and then abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(linger_s)
    os._exit(1)


def _meet(rank: Rank, limits: GroupLimits) -> KeyValueStore:
    coordinator = jax_coordinator(os.environ)
    if coordinator is None:
        raise RankError(
            "JAX_COORDINATOR_ADDR is not set; trainer=jax needs the ranks of python -m digirl_dist.parallel.jax"
        )
    roll_call(rank, coordinator, limits.start_s)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    try:
        jax.distributed.initialize(
            coordinator.address,
            rank.world_size,
            rank.rank,
            local_device_ids=[rank.local_rank],
            initialization_timeout=math.ceil(limits.start_s),
            heartbeat_timeout_seconds=math.ceil(limits.exchange_s),
        )
    except RuntimeError as error:
        raise PeerError(
            f"rank {rank.rank} met nobody at {coordinator.address} within {limits.start_s:g} s: {str(error)[:200]}"
        ) from error
    return CoordinatorStore(distributed.global_state.client)


def _refuse_missing_device(device: str) -> None:
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the second where JAX came without CUDA
        raise DeviceError(
            f"JAX has no device for this rank with trainer.device={device}: install JAX for it (pip install "
            "'jax[cuda13]'), start one rank for each GPU, or set trainer.device=cpu "
            f"({in_short(error) or 'no backend'})"
        ) from error


class CoordinatorStore:
    """Implements ``KeyValueStore`` with the client of JAX's coordinator."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def set(self, key: str, value: str | bytes) -> None:
        self._client.key_value_set_bytes(key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        found: bytes = self._client.key_value_try_get_bytes(key)
        return found

    def check(self, keys: list[str]) -> bool:
        return all(self._has(key) for key in keys)

    def delete_key(self, key: str) -> bool:
        self._client.key_value_delete(key)
        return True

    def _has(self, key: str) -> bool:
        try:
            self._client.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("NOT_FOUND"):
                return False
            raise
        return True


class StoreExchange:
    """Implements ``Exchange`` by keys in a store: for a few numbers or bytes, with the same bits on every rank."""

    def __init__(self, store: KeyValueStore, rank: Rank, limit_s: float) -> None:
        self._store = store
        self._rank = rank
        self._limit_s = limit_s
        self._count = 0

    def sum(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self.gathered(tensor)).sum(dim=0))

    def largest(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self.gathered(tensor)).amax(dim=0))

    def gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = map(self._store.get, self._keys_of_all(tensor.numpy().tobytes()))
        return [torch.frombuffer(bytearray(each), dtype=tensor.dtype).view_as(tensor) for each in found]

    def bytes_of_first(self, data: bytes) -> bytes:
        return bytes(self._store.get(self._keys_of_all(data)[0]))

    def bytes_of_all(self, data: bytes) -> list[bytes]:
        keys = self._keys_of_all(data)
        return [bytes(self._store.get(key)) for key in keys] if self._rank.is_first else []

    def _keys_of_all(self, own: bytes) -> list[str]:
        """Sets what this rank has; returns where each rank's is, once all have set theirs."""
        self._count += 1
        name = f"exchange/{self._count}"
        self._store.set(f"{name}/{self._rank.rank}", own)  # type: ignore[arg-type]  # the stub forgets bytes
        self._store.delete_key(f"exchange/{self._count - 2}/{self._rank.rank}")  # nobody is that far behind
        keys = [f"{name}/{rank}" for rank in range(self._rank.world_size)]
        if not all_set(self._store, keys, self._limit_s):
            raise RuntimeError("its part did not come")
        return keys
