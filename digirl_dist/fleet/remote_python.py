"""A program of ours that runs in a worker's own Python before anything is installed there: it is streamed to it."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import msgspec

from digirl_dist import capacity
from digirl_dist.errors import InstallError, WorkerError
from digirl_dist.ssh.connection import Connection
from digirl_dist.storage import file_system
from digirl_dist.types import Closeable
from digirl_dist.worker_program import pip_configuration

_BESIDE = (capacity, file_system, pip_configuration)
"""Modules that need the standard library only."""
_ANSWERS = msgspec.json.Decoder(dict[str, Any])
_OLD_PYTHON = "needs Python 3.10 or newer"
_LOADER = f"""\
import sys
if sys.version_info < (3, 10):
    sys.exit("{_OLD_PYTHON}, not %d.%d" % sys.version_info[:2])
import json, types
source = sys.stdin.buffer
sources = json.loads(source.readline())
for name, text in sources[:-1]:
    sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), vars(sys.modules[name]))
exec(compile(sources[-1][1], "program.py", "exec"))
"""
_GET_PYTHON = "`apt-get install python3 python3-venv` there, or set worker_python to another Python"


class RemotePython(Closeable):
    """``program`` reads ``order`` as a line of JSON from its stdin and answers with lines of JSON.

    It imports the standard library, and of this package what ``_BESIDE`` lists.
    """

    def __init__(self, connection: Connection, python: str, program: ModuleType, order: Mapping[str, Any]) -> None:
        """Starts the program; ``python`` may start with ``~/``, and heeds no ``PYTHON…`` variable of that machine.

        Raises LinkLostError.
        """
        self._python = python
        self._channel = connection.open([python, "-Ec", _LOADER])
        sources = [(module.__name__, inspect.getsource(module)) for module in (*_BESIDE, program)]
        with suppress(WorkerError):  # no Python there: that there is no answer tells so
            self._channel.write(f"{json.dumps(sources)}\n{json.dumps(order)}\n".encode())

    def close(self) -> None:
        self._channel.close()

    def write(self, data: bytes) -> None:
        self._channel.write(data)

    def answer(self, deadline: float) -> dict[str, Any]:
        """Returns what the program says next, before the monotonic time ``deadline``.

        Raises InstallError if it says nothing, or LinkLostError.
        """
        line = self._channel.readline(max(1.0, deadline - time.monotonic()))
        if not line:
            raise self._why_no_answer()
        try:
            return _ANSWERS.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = f"something else than the installation answers: {line[:200]!r}"
            remedy = (
                "let the shell's start-up files print nothing when it is not interactive; an account without a shell "
                "needs one (`chsh`), and no ForceCommand in sshd_config"
            )
            raise InstallError(self._channel.worker, reason, remedy) from error

    def _why_no_answer(self) -> WorkerError:
        channel, python = self._channel, self._python
        ended = channel.ended()
        if channel.exit_status in (None, -1):
            return ended
        said = channel.stderr_tail()
        if channel.exit_status in (126, 127):
            return InstallError(channel.worker, f"there is no `{python}` that can be run: {said}", _GET_PYTHON)
        if _OLD_PYTHON in said:
            return InstallError(channel.worker, f"`{python}` is too old: the package {said}", _GET_PYTHON)
        if not said:
            remedy = "look there for a ForceCommand in sshd_config, or a command= in authorized_keys"
            return InstallError(
                channel.worker, f"`{python}` ended with status {channel.exit_status} and said nothing", remedy
            )
        return InstallError(channel.worker, f"`{python}` could not run our program: {said}")
