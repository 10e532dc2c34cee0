"""Joins a Ray cluster, or starts one here that ends with this program."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import digirl_dist
from digirl_dist.errors import ClusterError, SettingsError, on_error

LOCAL = "local"
"""As an address: start a cluster on this machine, for as long as this process needs it."""
RAY_NICENESS = "RAY_worker_niceness"
"""The environment variable for the niceness of Ray's workers; Ray's default of 15 starves emulators."""
_PORT, _CLIENT_PORT = 6379, 10001
_DIAL_S = 5.0
_LOCAL_STORE_BYTES = 1 << 30
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


class _Membership:
    """This program's membership in a cluster that ``connect`` joined or started; the last ``Cluster`` ends it."""

    def __init__(self, address: str, folder: str | None, token: _PrivateToken | None) -> None:
        self.users = 0
        self.address = address
        self.folder = folder
        self.token = token

    def forget(self) -> None:
        if self.token is not None:
            self.token.close()


_lock = threading.RLock()  # a garbage collection while it is held may close a forgotten cluster
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
        """Returns the resources of all nodes by Ray's names: CPU, GPU, and those of the user."""
        return {name: float(amount) for name, amount in _import_ray().cluster_resources().items()}

    def free(self) -> dict[str, float]:
        """Returns those of the resources that are free now."""
        return {name: float(amount) for name, amount in _import_ray().available_resources().items()}

    def close(self) -> None:
        """Leaves the cluster, or ends its own, unless another user is left in this program. Idempotent."""
        if type(threading.current_thread()).__module__.startswith("ray."):
            # Ray's garbage collector closes a forgotten one; it must not wait for Ray's end, which waits for it.
            threading.Thread(target=self._close, name="ray-shutdown").start()
        else:
            self._close()

    def _close(self) -> None:
        global _mine
        with _lock:
            membership, self._membership = self._membership, None
            self.closed.set()
            if membership is not None:
                membership.users -= 1
                if not membership.users and membership is _mine:
                    _mine = None
                    _import_ray().shutdown()
                    membership.forget()


def connect(address: str | None, limit_s: float, working_dir: str | None = None, or_start: bool = False) -> Cluster:
    """Joins the cluster at ``address``: HOST, HOST:PORT, ray://HOST:PORT, or ``auto`` for the one on this machine that
    Ray finds; or starts one for ``local``.

    None: that of RAY_ADDRESS; without it, and with ``or_start``, a new one, which asks for a token, so that other users
    of the machine cannot use it. A program that is in a cluster already stays there. This package and the folder
    ``working_dir`` travel to the nodes when the program joins. Raises ClusterError naming a cluster that cannot be used
    or does not answer within ``limit_s``.
    """
    folder = None if working_dir is None else _folder(working_dir)
    global _mine
    with _lock:
        if _import_ray().is_initialized():
            _refuse_another(None if address is None else _place(address, or_start), folder)
        else:
            place = _place(address, or_start)
            if _mine is not None:  # the user's program has called ray.shutdown()
                _mine.forget()
            _mine = None
            _mine = _started(folder) if place == LOCAL else _joined(place, limit_s, folder)
        return Cluster(_mine)


def _place(address: str | None, or_start: bool) -> str:
    """Returns ``auto``, ``local``, HOST:PORT or ray://HOST:PORT. Raises ClusterError."""
    if address is not None and (not isinstance(address, str) or not address.strip()):
        raise ClusterError(f"{address!r} is no address of a Ray cluster: HOST, HOST:PORT or ray://HOST:PORT is")
    place = address or os.environ.get("RAY_ADDRESS") or (LOCAL if or_start else None)
    if place is None:
        raise ClusterError(
            "no Ray cluster is named: start one with `ray start --head` and set collector.address=auto, or set it (or "
            "RAY_ADDRESS) to the cluster's address"
        )
    return place if place in (LOCAL, "auto") or ":" in place else f"{place}:{_PORT}"


def _folder(working_dir: str) -> str:
    """Returns the folder's whole path. Raises ClusterError if there is none."""
    path = Path(working_dir).expanduser().resolve()
    if "://" in working_dir or path.suffix == ".zip":  # Ray takes these too
        return working_dir
    if not path.is_dir():
        raise ClusterError(f"working_dir={working_dir}: {path} is no folder, so it cannot be copied to the nodes")
    return str(path)


def _refuse_another(place: str | None, folder: str | None) -> None:
    """Raises ClusterError for another cluster, or for a folder that can no longer travel to the nodes."""
    ray = _import_ray()
    joined = {str(ray.get_runtime_context().gcs_address), *([] if _mine is None else [_mine.address])}
    if place not in (None, LOCAL, "auto") and place not in joined:
        raise ClusterError(
            f"this program is in the Ray cluster at {min(joined)} already, so it cannot use that at {place}: "
            "call ray.shutdown() first"
        )
    if folder is not None and (_mine is None or _mine.folder != folder):
        raise ClusterError(
            f"working_dir={folder} cannot be copied to the nodes, because this program is in the Ray cluster already, "
            "without it; name it where the program joins the cluster first, or close that before"
        )


def _started(folder: str | None) -> _Membership:
    os.environ.setdefault(RAY_NICENESS, "0")
    token = _PrivateToken()
    environment = {} if folder is None else {"working_dir": folder}
    with on_error(token.close):
        # In this thread, because Ray handles signals; it limits its own waits where it starts the processes.
        _init(address=LOCAL, include_dashboard=False, object_store_memory=_LOCAL_STORE_BYTES, runtime_env=environment)
    return _Membership(LOCAL, folder, token)


def _joined(place: str, limit_s: float, folder: str | None) -> _Membership:
    """Joins in a thread, because Ray tries an address for minutes. Raises ClusterError."""
    shipped: dict[str, Any] = {"py_modules": [str(Path(digirl_dist.__file__).resolve().parent)]}
    if folder is not None:
        shipped["working_dir"] = folder
    failed: list[BaseException] = []

    def join() -> None:
        try:
            if place != "auto":
                _dial(place)
            _init(address=place, runtime_env=shipped)
        except BaseException as error:  # raised below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=join, name="ray-init", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        reason = str(failed[0]).split("\n", 1)[0]
        raise ClusterError(f"the Ray cluster at {place} cannot be used: {reason}; {_hint()}") from failed[0]
    if thread.is_alive():
        raise ClusterError(f"the Ray cluster at {place} did not let us in within {limit_s:g} s; {_hint()}")
    return _Membership(place, folder, None)


def _dial(place: str) -> None:
    """Raises OSError or ValueError where nothing listens, as Ray would only after its minutes."""
    parts = urlsplit(place if "://" in place else f"//{place}")
    port = parts.port or (_CLIENT_PORT if "://" in place else _PORT)
    socket.create_connection((parts.hostname, port), timeout=_DIAL_S).close()


def _hint() -> str:
    """Returns the remedy; Ray does not report that a cluster refused us because of its token."""
    if os.environ.get(_MODE, "").lower() == "token":
        return f"check the address, and the token in {_TOKEN}, {_TOKEN_PATH} or ~/.ray/auth_token"
    return (
        f"start one with `ray start --head`, or correct the address; if it was started with a token, set {_MODE}=token "
        f"and {_TOKEN_PATH}=FILE"
    )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SettingsError("Ray is not installed: pip install 'digirl_dist[ray]'") from error
    return ray


def _init(**options: Any) -> None:
    _import_ray().init(log_to_driver=False, logging_level="error", **options)


class _PrivateToken:
    """A token in a file of this user, without which nobody can use the cluster that this program starts.

    Ray's processes learn of it from their environment until ``close``. A mode or a token that the user has set stays.
    Versions of Ray without tokens ignore it.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _TOKEN_PATH)}
        if self._before[_MODE] is None:
            os.environ[_MODE] = "token"
        if os.environ[_MODE].lower() == "token" and self._before[_TOKEN] is None and self._before[_TOKEN_PATH] is None:
            handle, name = tempfile.mkstemp(prefix="digirl-dist-ray-token-")
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
            self._file = Path(name)
            os.environ[_TOKEN_PATH] = name
        _read_again()

    def close(self) -> None:
        """Removes the file and restores the environment. Idempotent."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        _read_again()


def _read_again() -> None:
    """Makes Ray, which keeps what it read when it was imported, read these variables again."""
    try:
        import ray._raylet as raylet
    except ImportError:
        return
    kept: Any = raylet
    if hasattr(kept, "AuthenticationTokenLoader"):  # versions of Ray without tokens have none
        kept.Config.initialize("")
        kept.AuthenticationTokenLoader.instance().reset_cache()
