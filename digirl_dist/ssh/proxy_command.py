"""The ``ProxyCommand`` of ~/.ssh/config as a socket for paramiko.

paramiko's own spins at the command's end, and lets the command block on its stderr.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import Any

from digirl_dist.ssh import tied_process

_END_S = 0.5


class ProxyCommand:
    """A command whose input and output are one socket. It ends when that is closed, or this process ends."""

    def __init__(self, line: str) -> None:
        """``line`` is one for the shell, as for ``ssh``. Raises OSError."""
        self._socket, theirs = socket.socketpair()
        try:
            command = ["/bin/sh", "-c", f"exec {line}"]
            ends = theirs.fileno(), theirs.fileno(), subprocess.DEVNULL
            self._process = tied_process.start(command, *ends, env=os.environ)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def ended(self) -> str:
        """Returns how the command ended, if it has."""
        with suppress(subprocess.TimeoutExpired):
            return f"it ended with status {self._process.wait(_END_S)}"
        return "it closed its output"

    def close(self) -> None:
        self._socket.close()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
