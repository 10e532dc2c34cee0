"""The way into a Ray cluster: one that runs, or one that is started here and ends with us."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digirl_dist
from digirl_dist.errors import ClusterError, SettingsError

LOCAL = "local"
"""As an address: start a cluster on this machine, for as long as this process needs it."""
RAY_NICENESS = "RAY_worker_niceness"
"""The environment variable that tells Ray how nice its workers are. Where it says nothing they are at 15."""
_PORT = 6379
_CLIENT_PORT = 10001
_PROBE_S = 5.0
_LOCAL_STORE_BYTES = 1 << 30


class Cluster:
    """A connection to a Ray cluster. Ends it, and a cluster that was started for it, if it was made here."""

    def __init__(self, owned: bool) -> None:
        self.closed = threading.Event()
        self._owned = owned

    def resources(self) -> dict[str, float]:
        """Returns what the nodes have in all, by Ray's names: CPU, GPU, and those of the user's own."""
        return {name: float(amount) for name, amount in _import_ray().cluster_resources().items()}

    def free(self) -> dict[str, float]:
        """Returns what of it nobody holds now."""
        return {name: float(amount) for name, amount in _import_ray().available_resources().items()}

    def close(self) -> None:
        """Leaves the cluster, or ends its own; a second call is harmless."""
        if not self.closed.is_set() and self._owned:
            _import_ray().shutdown()
        self.closed.set()


def connect(address: str | None, limit_s: float, working_dir: str | None = None, or_start: bool = False) -> Cluster:
    """Join the cluster at ``address``: HOST, HOST:PORT, ray://HOST:PORT or ``local``.

    None: the one that RAY_ADDRESS names, or that runs on this machine, or, with ``or_start``, one that is started. A
    program that is in a cluster already stays there. This package travels to the nodes, and so does the folder
    ``working_dir``. Raises ClusterError naming the address when nobody answers there within ``limit_s``.
    """
    ray = _import_ray()
    if ray.is_initialized():
        return Cluster(owned=False)
    environment: dict[str, Any] = {} if working_dir is None else {"working_dir": working_dir}
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address != LOCAL:
        try:
            _join(address, limit_s, environment)
            return Cluster(owned=True)
        except _NoneHere:
            if not or_start:
                raise
    # the 15 starves the emulators wherever anything else computes, such as the policy's update on this machine
    os.environ.setdefault(RAY_NICENESS, "0")
    # in this very thread, as Ray wants to handle signals; it limits its own waits where it starts the processes itself
    _init(address=LOCAL, include_dashboard=False, object_store_memory=_LOCAL_STORE_BYTES, runtime_env=environment)
    return Cluster(owned=True)


class _NoneHere(ClusterError):
    """No cluster runs on this machine."""


def _join(address: str, limit_s: float, environment: dict[str, Any]) -> None:
    place = address if address == "auto" or ":" in address else f"{address}:{_PORT}"
    what = "the Ray cluster of this machine" if place == "auto" else f"the Ray cluster at {place}"
    if place != "auto":
        _probe(place)
    shipped = {"py_modules": [str(Path(digirl_dist.__file__).resolve().parent)], **environment}
    _within(limit_s, what, lambda: _init(address=place, runtime_env=shipped))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SettingsError("Ray is not installed: pip install 'digirl_dist[ray]'") from error
    return ray


def _init(**options: Any) -> None:
    _import_ray().init(log_to_driver=False, logging_level="error", **options)


def _probe(place: str) -> None:
    """Ray itself tries for minutes where nobody listens. Raises ClusterError."""
    named = place.removeprefix("ray://")
    host, port = named.rsplit(":", 1) if ":" in named else (named, str(_CLIENT_PORT))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Ray cluster answers at {place}: {error}; start one with `ray start --head`") from error


def _token_hint() -> str:
    """Ray does not say whether a cluster refused us for want of a token."""
    return "" if "RAY_AUTH_MODE" in os.environ else "; if it was started with a token, set RAY_AUTH_MODE=token"


def _within(limit_s: float, what: str, start: Callable[[], None]) -> None:
    """Calls ``start`` in a thread, since Ray has no limits of its own. Raises ClusterError."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            start()
        except BaseException as error:  # it is told in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="ray-init", daemon=True)
    started = time.monotonic()
    thread.start()
    thread.join(limit_s)
    if failed and isinstance(failed[0], ConnectionError):
        raise _NoneHere(f"{what} is not there: {failed[0]}{_token_hint()}") from failed[0]
    if failed:
        raise ClusterError(f"{what} cannot be used: {failed[0]}") from failed[0]
    if thread.is_alive():
        raise ClusterError(f"{what} did not let us in within {time.monotonic() - started:.0f} s{_token_hint()}")
