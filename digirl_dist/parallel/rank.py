"""Reads from a launcher's variables which of several processes this one is; nothing else reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.errors import RankError


@dataclass(frozen=True)
class Rank:
    """One process of ``world_size``; ``local_rank`` is its number on its own machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that logs, evaluates and saves."""
        return self.rank == 0


@dataclass(frozen=True)
class _Launcher:
    """The names of the variables in which a launcher passes the fields of ``Rank``."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """A pod of one replica has a rank of one and no launcher (Kubeflow's PyTorchJob), and is alone."""
        told = [environ.get(name, "") for name in (self.rank, self.world_size, self.local_rank)]
        is_alone = told[0] in ("", "0") and told[1] == "1" and not told[2]
        return any(told) and not is_alone

    def variables(self, rank: Rank) -> dict[str, str]:
        return {
            self.rank: str(rank.rank),
            self.world_size: str(rank.world_size),
            self.local_rank: str(rank.local_rank),
            self.local_world_size: str(rank.local_world_size),
        }


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("the JAX launcher", "JAX_RANK", "JAX_WORLD_SIZE", "JAX_LOCAL_RANK", "JAX_LOCAL_WORLD_SIZE"),
)
"""In the order of precedence."""

_STORE, _STARTED_BY = "DIGIRL_DIST_STORE", "DIGIRL_DIST_LAUNCHER"
_COORDINATOR_HOST, _COORDINATOR_PORT = "JAX_COORDINATOR_ADDR", "JAX_COORDINATOR_PORT"


def launched_rank(environ: Mapping[str, str]) -> Rank | None:
    """Returns the rank that the launcher assigned, None without a launcher.

    Raises RankError (a ValueError) naming the variable that is missing, no number, out of range or contradicted.
    """
    told = [(launcher, _read(launcher, environ)) for launcher in _LAUNCHERS if launcher.is_here(environ)]
    if len(told) == 2 and told[0][1] != told[1][1]:
        (first, by_first), (second, by_second) = told
        raise RankError(
            f"{second.rank} and its companions say {by_second}, {first.rank} of {first.name} {by_first}; "
            f"unset the variables of the launcher that is not in use"
        )
    return told[0][1] if told else None


@dataclass(frozen=True)
class Coordinator:
    """The port of rank 0's machine at which the ranks of a JAX program meet."""

    host: str
    port: int

    @staticmethod
    def parsed(address: str) -> Coordinator:
        """Parses ``HOST:PORT`` or ``[IPv6]:PORT``. Raises RankError for anything else."""
        host, _, port = address.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or (":" in bare and bare == host) or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise RankError(f"coordinator address {address!r} is not HOST:PORT, as in 10.0.0.1:5000 or [::1]:5000")
        return Coordinator(bare, int(port))


def jax_variables(rank: Rank, coordinator: Coordinator) -> dict[str, str]:
    """Returns the variables that the JAX launcher sets for one of its processes."""
    place = {_COORDINATOR_HOST: coordinator.host, _COORDINATOR_PORT: str(coordinator.port)}
    return {**_LAUNCHERS[-1].variables(rank), **place}


def torch_variables(rank: Rank) -> dict[str, str]:
    """Returns the variables in which torchrun tells one of its processes its rank."""
    return _LAUNCHERS[0].variables(rank)


def variables_past_proxies(environ: Mapping[str, str], coordinator: Coordinator) -> dict[str, str]:
    """Returns the variable that has gRPC, and so JAX, reach the coordinator directly, whatever proxy is configured."""
    direct = environ.get("no_grpc_proxy") or environ.get("no_proxy")
    return {"no_grpc_proxy": ",".join(filter(None, (direct, coordinator.host)))}


def restarts(environ: Mapping[str, str]) -> str:
    """Returns how often torchrun has started the ranks of this launch again; "0" without torchrun."""
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def store_variables(path: Path) -> dict[str, str]:
    """Returns the variables with which this process, a launcher, tells its ranks of the store at ``path``."""
    return {_STORE: str(path), _STARTED_BY: str(os.getpid())}


def store_path(environ: Mapping[str, str]) -> Path | None:
    """Returns where the launcher that started this process keeps its store; None if another launcher did."""
    if _STORE not in environ or environ.get(_STARTED_BY) != str(os.getppid()):
        return None  # or a launcher of another kind that one of our ranks has started
    return Path(environ[_STORE])


def is_of_jax(environ: Mapping[str, str]) -> bool:
    """Returns whether the JAX launcher started this process."""
    return _COORDINATOR_HOST in environ


def own_rank(environ: Mapping[str, str]) -> Rank:
    """Returns the launched rank, or rank 0 of 1 without a launcher. Raises RankError as ``launched_rank`` does."""
    return launched_rank(environ) or Rank()


def _read(launcher: _Launcher, environ: Mapping[str, str]) -> Rank:
    needed = (launcher.rank, launcher.world_size, launcher.local_rank)
    there = [name for name in needed if environ.get(name)]
    if missing := [name for name in needed if name not in there]:
        raise RankError(
            f"{missing[0]} is not set beside {' and '.join(there)}; start with {launcher.name}, which sets all of "
            f"them, or, to run alone, `unset {' '.join(there)}`"
        )
    world_size = _number(environ, launcher.world_size, least=1)
    rank = _number(environ, launcher.rank, below=world_size, bound=launcher.world_size)
    local_rank = _number(environ, launcher.local_rank, below=world_size, bound=launcher.world_size)
    name = launcher.local_world_size
    if not environ.get(name):
        return Rank(rank, world_size, local_rank, local_world_size=world_size)
    local_world_size = _number(environ, name, least=1, below=world_size + 1, bound=launcher.world_size)
    if local_rank >= local_world_size:
        raise RankError(f"{launcher.local_rank}={local_rank} must be below {name}={local_world_size}")
    if local_rank > rank:
        raise RankError(f"{launcher.local_rank}={local_rank} cannot be above {launcher.rank}={rank}")
    return Rank(rank, world_size, local_rank, local_world_size)


def _number(environ: Mapping[str, str], name: str, least: int = 0, below: int | None = None, bound: str = "") -> int:
    try:
        value = int(environ[name])
    except ValueError:
        raise RankError(f"{name}={environ[name]!r} is not a whole number") from None
    if value < least:
        raise RankError(f"{name}={value} must be at least {least}")
    if below is not None and value >= below:
        raise RankError(f"{name}={value} is too large for {bound}={environ[bound]}")
    return value


def named(ranks: Sequence[int]) -> str:
    """Returns ranks in words, as in ``ranks 1, 3``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
