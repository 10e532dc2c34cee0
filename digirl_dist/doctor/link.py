"""Checks the connection to a worker, from its name to its speed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

from digirl_dist.doctor.check import Check
from digirl_dist.errors import HostKeyError, LoginError, ShellError, SlowShellError, UnknownHostError, WorkerError
from digirl_dist.ssh.connection import Connection

_STAGES = ("name", "port", "host key", "login", "shell")
_ECHOES = 5
_PROBE_BYTES = 2 << 20
_PROBE_LIMIT_S = 60.0
_SLOW_S = 0.5
_SLOW_MB_S = 1.0


def unreachable(worker: str, error: WorkerError) -> list[Check]:
    """Returns the failed check of the stage at which ``error`` happened, after the passed ones of the stages before."""
    failed = _STAGES.index(_stage(error))
    passed = [Check(worker, stage, True, "") for stage in _STAGES[:failed]]
    return [*passed, Check(worker, _STAGES[failed], False, error.reason, error.remedy)]


def reached(connection: Connection) -> list[Check]:
    at = (connection.host, f"port {connection.port}", connection.fingerprint, f"user {connection.user}")
    details = (*at, "runs commands, and prints nothing of its own")
    return [Check(connection.worker, stage, True, detail) for stage, detail in zip(_STAGES, details, strict=True)]


def speed(connection: Connection) -> Iterator[Check]:
    """Yields the checks of round trip and throughput. Raises WorkerError."""
    slow = "look for what else uses the link, or use a machine nearer by"
    trip_s = _round_trip_s(connection)
    yield Check(connection.worker, "round trip", trip_s < _SLOW_S, f"{trip_s * 1000:.1f} ms", slow, blocks=False)
    mb_s = _throughput_mb_s(connection)
    detail = f"{mb_s:.1f} MB/s in both directions at once"
    remedy = f"{slow}: the first checkpoint and every episode go over it"
    yield Check(connection.worker, "throughput", mb_s > _SLOW_MB_S, detail, remedy, blocks=False)


def _stage(error: WorkerError) -> str:
    match error:
        case ShellError() | SlowShellError():
            return "shell"
        case HostKeyError():
            return "host key"
        case LoginError():
            return "login"
        case UnknownHostError():
            return "name"
        case _:
            return "port"


def _round_trip_s(connection: Connection) -> float:
    """Returns the shortest of a few round trips of a line through ``cat`` on an open channel, in seconds."""
    times = []
    with closing(connection.open("cat")) as channel:
        for _ in range(_ECHOES + 1):  # the first one includes the start of cat
            started = time.monotonic()
            channel.write(b"\n")
            channel.readline(_PROBE_LIMIT_S)
            times.append(time.monotonic() - started)
    return min(times[1:])


def _throughput_mb_s(connection: Connection) -> float:
    """Returns the throughput of incompressible bytes in MB/s."""
    data = os.urandom(_PROBE_BYTES)
    started = time.monotonic()
    try:
        connection.run("cat", data, _PROBE_LIMIT_S)
    except WorkerError as error:
        if not connection.alive or "did not end within" not in error.reason:
            raise
    return _PROBE_BYTES / (time.monotonic() - started) / 1e6
