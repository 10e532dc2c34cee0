"""Processes with environments: sends requests to all at once and collects the answers in the same order."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from digirl_dist.errors import ClusterError, WorkerError, on_error
from digirl_dist.vec_env.config import RayDistributionCfg, VecEnvConfig
from digirl_dist.worker_program.environments import EnvHost, Result, encode, from_array

_CLOSE_S = 10.0
_NONE = (ValueError, TypeError, SyntaxError, OverflowError, RecursionError)
"""What msgspec and NumPy raise for what is no result."""


class Member(Protocol):
    """A process with environments on another machine."""

    name: str
    envs: list[int]
    """The numbers of its environments over all processes, in the order in which it knows them."""

    def send(self, request: str, asked: msgspec.Raw) -> None:
        """Raises ClusterError or WorkerError if it is lost."""

    def answer(self, limit_s: float) -> bytes:
        """Returns the results as MessagePack. Raises as ``send``."""

    def close(self) -> None:
        """Ends it and its environments. Idempotent."""


M = TypeVar("M", bound=Member)


@dataclass
class Answers:
    """The results of one request, by environment number, and the members that were lost, with the reason."""

    results: dict[int, Result] = field(default_factory=dict)
    lost: list[tuple[Member, str]] = field(default_factory=list)


class LocalPool:
    """All environments in this process."""

    def __init__(self, config: VecEnvConfig) -> None:
        self.host = EnvHost(config.env, config.env_num)

    def ask(self, request: str, asked: Mapping[int, Any]) -> Answers:
        return Answers(dict(zip(asked, getattr(self.host, request)(list(asked.items())), strict=True)))

    def close(self) -> None:
        self.host.close()


class Pool(Generic[M]):
    """Environments of several members. One that is lost leaves the pool."""

    def __init__(self, members: Sequence[M], limit_s: float) -> None:
        """``limit_s``: for each environment that a member is asked, which it does one after the other."""
        self.members = list(members)
        self._limit_s = limit_s

    def ask(self, request: str, asked: Mapping[int, Any], limit_s: float | None = None) -> Answers:
        """Asks environments by their number over all members.

        Raises TypeError for an argument that cannot travel, before any environment is asked.
        """
        shares = [(member, [number for number in member.envs if number in asked]) for member in self.members]
        packed = [
            (member, share, encode([(member.envs.index(number), asked[number]) for number in share]))
            for member, share in shares
            if share
        ]
        answers, sent = Answers(), []
        for member, share, content in packed:
            try:
                member.send(request, msgspec.Raw(content))
                sent.append((member, share))
            except (ClusterError, WorkerError) as error:
                self._lose(member, error, answers)
        deadline = time.monotonic() + (limit_s or self._limit_s) * max((len(share) for _, share in sent), default=0)
        for member, share in sent:
            try:
                found = member.answer(max(0.0, deadline - time.monotonic()))
                answers.results |= zip(share, _results(member.name, found, len(share)), strict=True)
            except (ClusterError, WorkerError) as error:
                self._lose(member, error, answers)
        return answers

    def close(self) -> None:
        members, self.members = self.members, []
        for member in members:
            member.close()

    def _lose(self, member: M, error: Exception, answers: Answers) -> None:
        self.members.remove(member)
        answers.lost.append((member, str(error)))
        member.close()


def _results(name: str, content: bytes, count: int) -> list[Result]:
    """Raises WorkerError for what no program of ours answers."""
    try:
        results = _RESULTS.decode(content)
        if len(results) != count:
            raise ValueError(f"{len(results)} answers for {count} environments")
        return results
    except _NONE as error:
        raise WorkerError(name, f"it sends no frames of ours: {error}") from error


_RESULTS = msgspec.msgpack.Decoder(list[Result], ext_hook=from_array)


class HostActor(EnvHost):
    """Environments in an actor of a Ray cluster. ``packed`` is a packed EnvMaker (see ``user_code.packing``)."""

    def __init__(self, packed: bytes, count: int) -> None:
        super().__init__(pickle.loads(packed), count)

    def exchange(self, request: str, asked: bytes) -> bytes:
        return encode(self.answer(request, msgspec.msgpack.decode(asked, ext_hook=from_array)))

    def process_id(self) -> int:
        """Returns the process id; its answer shows that the environments exist."""
        return os.getpid()


class RayMember:
    """An actor of a Ray cluster."""

    def __init__(self, number: int, actor: Any, envs: list[int]) -> None:
        self.name = f"process {number}"
        self.envs = envs
        self.actor = actor
        self._call: Any = None

    def send(self, request: str, asked: msgspec.Raw) -> None:
        import ray

        if not ray.is_initialized():  # Ray would start another cluster
            raise ClusterError("this program has left the Ray cluster")
        self._call = self.actor.exchange.remote(request, bytes(asked))

    def answer(self, limit_s: float) -> bytes:
        content: bytes = ray_result(self._call, limit_s)
        return content

    def close(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self.actor)


class RayPool(Pool["RayMember"]):
    """``proc_num`` actors of a Ray cluster."""

    def __init__(self, config: VecEnvConfig, distribution: RayDistributionCfg) -> None:
        """Raises ClusterError if the cluster does not answer or lacks resources."""
        from digirl_dist.ray_cluster.connect import connect

        super().__init__([], distribution.step_limit_s)
        where = distribution
        self._cluster = connect(where.head_address, where.start_limit_s, where.working_dir, or_start=True)
        with on_error(self.close):
            _check_room(where, self._cluster.resources())
            self._start(config, where)

    def close(self) -> None:
        """Closes every environment within a limit, then kills all processes."""
        import ray

        with ExitStack() as stack:  # also where Ctrl-C ends the wait
            stack.callback(self._cluster.close)
            stack.callback(super().close)
            if self.members and ray.is_initialized():
                closing = [member.actor.close.remote() for member in self.members]
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)

    def _start(self, config: VecEnvConfig, where: RayDistributionCfg) -> None:
        import ray

        from digirl_dist.user_code.packing import pack

        remote: Any = ray.remote
        options = {"num_cpus": where.cpu_num_per_proc, "num_gpus": where.gpu_num_per_proc, "max_restarts": 0}
        kind = remote(scheduling_strategy="SPREAD", **options)(HostActor)
        packed, each = pack(config.env), config.env_num
        for number in range(where.proc_num):
            envs = list(range(number * each, (number + 1) * each))
            self.members.append(RayMember(number, kind.remote(packed, each), envs))
        calls = {member.name: member.actor.process_id.remote() for member in self.members}
        ready = ray.wait(list(calls.values()), num_returns=len(calls), timeout=where.start_limit_s)[0]
        for name, call in calls.items():
            if call in ready:
                try:
                    ray_result(call, 0.0)
                except ClusterError as error:
                    raise ClusterError(f"{name} did not start: {error}") from error
        if len(ready) < len(calls):
            raise ClusterError(
                f"only {len(ready)} of {len(calls)} processes started within {where.start_limit_s:.0f} s: "
                f"not enough of the cluster is free for {where.cpu_num_per_proc:g} CPUs and "
                f"{where.gpu_num_per_proc:g} GPUs each"
            )


def _check_room(where: RayDistributionCfg, there: Mapping[str, float]) -> None:
    """Raises ClusterError if the cluster is too small; Ray itself would wait for ever."""
    for kind, each in (("CPU", where.cpu_num_per_proc), ("GPU", where.gpu_num_per_proc)):
        wanted, found = where.proc_num * each, there.get(kind, 0.0)
        if wanted > found:
            raise ClusterError(
                f"{where.proc_num} processes with {each:g} {kind} each need {wanted:g} {kind}s, "
                f"but the Ray cluster has {found:g}; set {kind.lower()}_num_per_proc or proc_num lower"
            )


def ray_result(call: Any, limit_s: float) -> Any:
    """Returns what a call of an actor gave in time. Raises ClusterError if it is gone or too slow."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError

    try:
        return ray.get(call, timeout=limit_s)
    except GetTimeoutError as error:
        raise ClusterError(f"it did not answer within {limit_s:.0f} s") from error
    except RayActorError as error:
        said = str(error).strip().splitlines()
        made = "creation task" in said[0]
        raise ClusterError(
            f"its environments cannot be made: {said[-1]}" if made else f"it is gone: {said[0]}"
        ) from error
    except RayError as error:
        raise ClusterError(f"it failed: {str(error).strip().splitlines()[-1]}") from error
