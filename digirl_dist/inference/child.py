"""The owner's side of the host's policy process: starts it, sends requests, and kills it if it does not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from digirl_dist.child_process import environment, last_lines, opened_log
from digirl_dist.errors import PolicyLostError
from digirl_dist.inference.requests import InferenceReply, InferenceRequest
from digirl_dist.storage.checkpoint import Checkpoint

_END_S = 5.0


class PolicyProcess:
    """The policy process, used by one thread except for ``close``. A request after PolicyLostError starts a new one."""

    def __init__(self, packed_agent: bytes, log: Path, limit_s: float) -> None:
        self._packed_agent = packed_agent
        self._log = log
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._serving: Mapping[int, Checkpoint] = {}

    def serve(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, str]:
        """Makes exactly these versions act; returns those that cannot be loaded, with the reason."""
        if self._connection is None:
            self._start()
        if checkpoints == self._serving:
            return {}
        missing: dict[int, str] = self._ask("serve", dict(checkpoints), "load a policy")
        self._serving = dict(checkpoints)
        return missing

    def decide(self, requests: Sequence[InferenceRequest]) -> list[InferenceReply]:
        """Returns one reply per request, in any order."""
        answers: list[InferenceReply] = self._ask("decide", list(requests), f"decide {len(requests)} actions")
        return answers

    def close(self) -> None:
        """Kills the process. A request running in another thread then raises PolicyLostError."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait(_END_S)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "digirl_dist.inference.policy_process", str(theirs.fileno())]
        with theirs, opened_log(self._log) as log:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
            )
        self._connection, self._serving = Connection(ours.detach()), {}
        try:
            self._connection.send_bytes(self._packed_agent)
        except OSError:
            pass  # the process has ended; the first request reports it

    def _ask(self, request: str, content: Any, doing: str) -> Any:
        """Sends a request and returns its reply. Raises PolicyLostError if the process ends or exceeds the limit.

        A process that is stuck is killed at the limit, because neither sending nor receiving ends by itself.
        """
        assert self._connection is not None
        assert self._process is not None
        deadline = time.monotonic() + self._limit_s
        limit = threading.Timer(self._limit_s, self._process.kill)
        limit.daemon = True
        limit.start()
        try:
            self._connection.send((request, content))
            return self._connection.recv()
        except (EOFError, OSError):
            if time.monotonic() >= deadline:
                reason = f"did not {doing} within {self._limit_s:.0f} s"
            else:
                reason = f"ended while it had to {doing}{last_lines(self._log)}"
        finally:
            limit.cancel()
        self._connection.close()
        self._connection = None
        self.close()
        raise PolicyLostError(f"the host's policy process {reason}")
