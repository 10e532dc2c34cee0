"""The ranks of a JAX launch report to rank 0 before JAX starts: JAX itself aborts when a rank is missing.

Rank 0 listens at the coordinator's address, and lets go of it when all have come or the time is over. A rank says its
number in one line; the answer is one line too.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time

from digirl_dist.errors import PeerError
from digirl_dist.parallel.failure import telling_a_wait
from digirl_dist.parallel.rank import Coordinator, Rank, named

_WORD = re.compile(rb"rank (\d{1,6}) of (\d{1,6})\n")
_LINE = 4096
_SAY_S = 5.0
_LOOK_S = 0.2


def roll_call(rank: Rank, coordinator: Coordinator, limit_s: float) -> None:
    """Returns when all ranks have come. Raises PeerError naming the missing ones, or an address that cannot be used."""
    deadline = time.monotonic() + limit_s
    if rank.is_first:
        _call(rank, coordinator, deadline, limit_s)
    else:
        _report(rank, coordinator, deadline, limit_s)


def _call(rank: Rank, coordinator: Coordinator, deadline: float, limit_s: float) -> None:
    present: dict[int, socket.socket] = {}

    def missing() -> list[int]:
        return [number for number in range(1, rank.world_size) if number not in present]

    with (
        _listening(coordinator) as listener,
        telling_a_wait(rank, limit_s, lambda: f"{named(missing())} to start"),
    ):
        listener.settimeout(_LOOK_S)
        while missing() and time.monotonic() < deadline:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            number = _number(link, rank.world_size)
            if number is None:
                link.close()
            else:
                present[number] = link
    verdict = f"{named(missing())} did not start within {limit_s:g} s" if missing() else ""
    for link in present.values():
        with link:
            _say(link, f"{verdict or 'go'}\n".encode())
    if verdict:
        raise PeerError(verdict)


def _report(rank: Rank, coordinator: Coordinator, deadline: float, limit_s: float) -> None:
    state = "nobody answers"
    with telling_a_wait(rank, limit_s, lambda: f"rank 0 at {coordinator.address} ({state})"):
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((coordinator.host, coordinator.port), timeout=_SAY_S) as link:
                    state = "it has answered"
                    link.settimeout(max(_SAY_S, deadline - time.monotonic() + _SAY_S))
                    link.sendall(b"rank %d of %d\n" % (rank.rank, rank.world_size))
                    answer = _line(link).decode(errors="replace").strip()
            except OSError as error:  # rank 0 may start later
                state = error.strerror or str(error)
                time.sleep(_LOOK_S)
                continue
            if answer != "go":
                known = " of " in answer or "did not start" in answer
                raise PeerError(answer if known else _stranger(coordinator, answer))
            return
    raise PeerError(f"rank 0 cannot be reached at {coordinator.address} within {limit_s:g} s: {state}")


def _stranger(coordinator: Coordinator, answer: str) -> str:
    said = f"it says {answer[:80]!r}" if answer else "it hangs up"
    return f"what listens at {coordinator.address} is not rank 0 ({said}); choose another --coordinator_address"


def _listening(coordinator: Coordinator) -> socket.socket:
    """At the coordinator's own address if this machine has it, else at all of this machine, as JAX does."""
    family = socket.AF_INET6 if ":" in coordinator.host else socket.AF_INET
    try:
        return socket.create_server((coordinator.host, coordinator.port), family=family)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, socket.EAI_NONAME):
            raise _unusable(coordinator, error) from error
    try:
        return socket.create_server(("", coordinator.port))
    except OSError as error:
        raise _unusable(coordinator, error) from error


def _unusable(coordinator: Coordinator, error: OSError) -> PeerError:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return PeerError(f"rank 0 cannot listen at {coordinator.address}: {reason}; choose another --coordinator_address")


def _number(link: socket.socket, world_size: int) -> int | None:
    """The rank at the other end, None for whoever is no rank of this launch, who is told so."""
    link.settimeout(_SAY_S)
    try:
        said = _WORD.fullmatch(_line(link))
    except OSError:
        return None
    if said is None:
        return None
    number, count = int(said[1]), int(said[2])
    if count == world_size and 0 < number < world_size:
        return number
    _say(link, b"rank 0 was started for a launch of %d ranks, rank %d for one of %d\n" % (world_size, number, count))
    return None


def _line(link: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n") and len(said) < _LINE:
        part = link.recv(_LINE)
        if not part:
            break
        said += part
    return said


def _say(link: socket.socket, line: bytes) -> None:
    try:
        link.sendall(line)
    except OSError:
        pass  # it has gone, and will be missed by JAX
