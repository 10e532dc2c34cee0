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
from digirl_dist.ray_cluster.private_token import PrivateToken

LOCAL = "local"
"""As an address: start a cluster on this machine, for as long as this process needs it."""
RAY_NICENESS = "RAY_worker_niceness"
"""The environment variable that tells Ray how nice its workers are. Where it says nothing they are at 15."""
_PORT = 6379
_CLIENT_PORT = 10001
_PROBE_S = 5.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 begins with (RFC 9113, section 3.4): the preface, and an empty SETTINGS frame."""
_SETTINGS_FRAME = b"\x04"
_LOCAL_STORE_BYTES = 1 << 30


class _Membership:
    """What this program's ``connect`` made of Ray. All its ``Cluster``s share it, and the last one to close ends it."""

    def __init__(self, working_dir: str | None, token: PrivateToken | None = None) -> None:
        self.users = 0
        self.working_dir = working_dir
        self._token = token

    def end(self) -> None:
        """Leaves the cluster, or ends its own."""
        _import_ray().shutdown()
        self.forget()

    def forget(self) -> None:
        """Removes what is left of it where Ray has been shut down already."""
        if self._token is not None:
            self._token.close()


_lock = threading.RLock()  # a garbage collection inside may close a cluster that somebody forgot
_mine: _Membership | None = None


class Cluster:
    """A user of this program's connection to a Ray cluster. The last one ends what was made for it here."""

    def __init__(self, membership: _Membership | None) -> None:
        """None: the program was in the cluster before, and stays there."""
        self.closed = threading.Event()
        self._membership = membership
        if membership is not None:
            membership.users += 1

    def resources(self) -> dict[str, float]:
        """Returns what the nodes have in all, by Ray's names: CPU, GPU, and those of the user's own."""
        return {name: float(amount) for name, amount in _import_ray().cluster_resources().items()}

    def free(self) -> dict[str, float]:
        """Returns what of it nobody holds now."""
        return {name: float(amount) for name, amount in _import_ray().available_resources().items()}

    def close(self) -> None:
        """Leaves the cluster, or ends its own, unless somebody here still uses it; a second call is harmless."""
        if type(threading.current_thread()).__module__.startswith("ray."):
            # A forgotten one: Ray's thread that collects garbage must not wait for the end of Ray, which joins it.
            threading.Thread(target=self._close, name="ray-shutdown").start()
        else:
            self._close()

    def _close(self) -> None:
        global _mine
        with _lock:
            if self.closed.is_set():
                return
            self.closed.set()
            if self._membership is not None:
                self._membership.users -= 1
                if not self._membership.users and self._membership is _mine:
                    _mine = None
                    self._membership.end()


def connect(address: str | None, limit_s: float, working_dir: str | None = None, or_start: bool = False) -> Cluster:
    """Joins the cluster at ``address``: HOST, HOST:PORT, ray://HOST:PORT; or starts one for ``local``.

    None: the one that RAY_ADDRESS names, else the one that the user has started on this machine, as for ``auto``; where
    there is none, and with ``or_start``, a new one, which asks for a token, so that other users of the machine cannot
    use it. A program that is in a cluster already stays there. This package and the folder ``working_dir`` travel to
    the nodes when the program joins. Raises ClusterError naming a cluster that cannot be used or does not answer within
    ``limit_s``.
    """
    if address is not None and (not isinstance(address, str) or not address.strip()):
        raise ClusterError(f"{address!r} is no address of a Ray cluster: HOST, HOST:PORT or ray://HOST:PORT is")
    global _mine
    folder = None if working_dir is None else _folder(working_dir)
    named = address or os.environ.get("RAY_ADDRESS")
    with _lock:
        if _import_ray().is_initialized():
            _refuse_another(named)
            _refuse_another_folder(folder)
        else:
            before, _mine = _mine, None
            if before is not None:  # somebody has called ray.shutdown()
                before.forget()
            _mine = _joined_or_started(named, limit_s, folder, or_start)
        return Cluster(_mine)


def _joined_or_started(named: str | None, limit_s: float, folder: str | None, or_start: bool) -> _Membership:
    environment: dict[str, Any] = {} if folder is None else {"working_dir": folder}
    place = named if named and named != "auto" else _started_here()
    if place is not None and place != LOCAL:
        _join(place, limit_s, environment)
        return _Membership(folder)
    if place is None and (named or not or_start):
        raise ClusterError(
            "no Ray cluster runs on this machine; start one with `ray start --head`, or name its "
            "address (collector.address, head_address or RAY_ADDRESS)"
        )
    return _Membership(folder, _start(environment))


def _start(environment: dict[str, Any]) -> PrivateToken:
    # the 15 starves the emulators wherever anything else computes, such as the policy's update on this machine
    os.environ.setdefault(RAY_NICENESS, "0")
    token = PrivateToken()
    try:
        # in this very thread, as Ray wants to handle signals; it limits its own waits where it starts the processes
        _init(address=LOCAL, include_dashboard=False, object_store_memory=_LOCAL_STORE_BYTES, runtime_env=environment)
    except BaseException:
        token.close()
        raise
    return token


def _folder(working_dir: str) -> str:
    """Returns the folder's whole path. Raises ClusterError if there is none."""
    path = Path(working_dir).expanduser().resolve()
    if "://" in working_dir or path.suffix == ".zip":  # Ray takes these too
        return working_dir
    if not path.is_dir():
        raise ClusterError(f"working_dir={working_dir}: {path} is no folder, so it cannot be copied to the nodes")
    return str(path)


def _started_here() -> str | None:
    """Returns the address of the cluster that this user (or root) last started on this machine and that listens."""
    from ray._private import utils as ray_utils

    utils: Any = ray_utils
    try:
        owner = os.stat(utils.get_ray_address_file(None)).st_uid
        address: str = utils.read_ray_address(None)
        if owner not in (0, os.getuid()):
            return None
        _dial(address, _PROBE_S).close()
    except (OSError, TypeError, ValueError):  # none was started, or it has ended and left its address
        return None
    return address


def _join(address: str, limit_s: float, environment: dict[str, Any]) -> None:
    place = address if ":" in address else f"{address}:{_PORT}"
    what = f"the Ray cluster at {place}"
    _probe(place)
    shipped = {"py_modules": [str(Path(digirl_dist.__file__).resolve().parent)], **environment}
    _within(limit_s, what, lambda: _init(address=place, runtime_env=shipped))


def _refuse_another(named: str | None) -> None:
    """Raises ClusterError if this program is in another cluster than the named one."""
    if named in (None, LOCAL, "auto"):
        return
    mine = str(_import_ray().get_runtime_context().gcs_address)
    if ":" in mine and not _is_one(_host_and_port(str(named)), _host_and_port(mine)):
        raise ClusterError(
            f"this program is in the Ray cluster at {mine} already, so it cannot use that at {named}: "
            "call ray.shutdown() first"
        )


def _refuse_another_folder(folder: str | None) -> None:
    """Raises ClusterError for a working directory that cannot travel any more: the program is in the cluster."""
    there = _import_ray().get_runtime_context().runtime_env.get("working_dir")
    if folder is not None and (there is None or (_mine is not None and _mine.working_dir != folder)):
        raise ClusterError(
            f"working_dir={folder} cannot be copied to the nodes, because this program is in the Ray cluster already, "
            "without it; name it where the program joins the cluster first, or close that before"
        )


def _is_one(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Returns whether two addresses are of one cluster. The port of ``ray://`` says nothing about that of the head."""
    ports = {one[1], other[1]}
    return (len(ports) == 1 or _CLIENT_PORT in ports) and bool(_addresses(one[0]) & _addresses(other[0]))


def _addresses(host: str) -> set[str]:
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return {host}
    own = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    return found | own if any(address.startswith("127.") or address == "::1" for address in found) else found


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SettingsError("Ray is not installed: pip install 'digirl_dist[ray]'") from error
    return ray


def _init(**options: Any) -> None:
    _import_ray().init(log_to_driver=False, logging_level="error", **options)


def _host_and_port(place: str) -> tuple[str, int]:
    """Raises ValueError for a port that is none."""
    named, default = place.removeprefix("ray://"), _CLIENT_PORT if place.startswith("ray://") else _PORT
    host, port = named.rsplit(":", 1) if ":" in named else (named, str(default))
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{port!r} is no port")
    return host.strip("[]"), int(port)


def _dial(place: str, limit_s: float) -> socket.socket:
    return socket.create_connection(_host_and_port(place), timeout=limit_s)


def _probe(place: str) -> None:
    """Says hello in HTTP/2, which Ray speaks; Ray itself tries for minutes whoever listens. Raises ClusterError."""
    remedy = "start one with `ray start --head`, or correct the address"
    try:
        with _dial(place, _PROBE_S) as link:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            link.sendall(_HTTP2_HELLO)
            heard = link.recv(9, socket.MSG_WAITALL)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Ray cluster answers at {place}: {error}; {remedy}") from error
    if heard[3:4] != _SETTINGS_FRAME:
        raise ClusterError(f"what listens at {place} is no Ray cluster (it says {heard!r}); {remedy}")


def _hint() -> str:
    """Returns what to do about tokens: Ray does not say whether a cluster refused us for want of one."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return "; its token may be another one than that in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
    return "; if it was started with a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE"


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
    if failed:
        reason = str(failed[0]).split("\n", 1)[0]
        hint = _hint() if isinstance(failed[0], ConnectionError) or "uthenticat" in reason else ""
        raise ClusterError(f"{what} cannot be used: {reason}{hint}") from failed[0]
    if thread.is_alive():
        raise ClusterError(f"{what} did not let us in within {time.monotonic() - started:.0f} s{_hint()}")
