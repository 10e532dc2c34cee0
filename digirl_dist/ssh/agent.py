"""The SSH agent of this user, which may be stopped, or wait for a person, and then answers nobody."""

from __future__ import annotations

import os
import socket

import paramiko
from paramiko.agent import AgentSSH

LOOK_S = 2.0
REMEDY = "approve what it asks, or start it anew; `unset SSH_AUTH_SOCK` does without it, and `key` names a key file"


class SilentAgent(paramiko.SSHException):
    """The agent does not answer in time. The text names it."""


class Agent(paramiko.Agent):
    """paramiko's, each of whose answers may take ``limit_s``; it has no keys where there is no agent."""

    def __init__(self, limit_s: float, path: str | None = None) -> None:
        """Asks for its keys; ``path`` None: at ``SSH_AUTH_SOCK``. Raises SilentAgent."""
        AgentSSH.__init__(self)
        self._path = path or os.environ.get("SSH_AUTH_SOCK", "")
        self._limit_s = limit_s
        if not self._path:
            return
        there = socket.socket(socket.AF_UNIX)
        there.settimeout(limit_s)
        try:
            there.connect(self._path)
            self._connect(there)  # type: ignore[attr-defined]
        except (TimeoutError, BlockingIOError) as error:  # blocking: so many wait for it already
            there.close()
            raise self._silent() from error
        except OSError:
            there.close()
        except BaseException:
            there.close()
            raise

    def _read_all(self, wanted: int) -> bytes:
        try:
            return bytes(super()._read_all(wanted))  # type: ignore[misc]
        except TimeoutError as error:
            raise self._silent() from error

    def _silent(self) -> SilentAgent:
        return SilentAgent(f"the SSH agent at SSH_AUTH_SOCK={self._path} did not answer within {self._limit_s:g} s")


def silence(path: str) -> str:
    """Returns how an agent does not answer; empty if it does, or there is none."""
    try:
        Agent(LOOK_S, path).close()
    except SilentAgent as silent:
        return str(silent)
    except paramiko.SSHException:  # it speaks another language, but it speaks
        pass
    return ""
