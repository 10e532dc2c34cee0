"""The server of an OpenEnv environment: started behind a socket of its own, asked over WebSocket, and ended."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, unix_connect

from digirl_dist.child_process import dying_with_this_process, reap
from digirl_dist.errors import EmulatorError, on_error
from digirl_dist.threads import after

_LOOK_S = 0.05
_END_S = 3.0
_LINES_KEPT = 20
_LONGEST_LINE = 4096
_LONGEST_PATH = 107
"""Bytes of a Unix socket's path."""
_MOST_BYTES = 64 << 20
"""Of one message."""


@dataclass(frozen=True)
class ServerSpec:
    """How a server is started."""

    app: str
    """The application in uvicorn's notation."""
    python: str | None = None
    """None: this one."""
    project: str | None = None
    """The folder in which it starts."""
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 120.0
    """Longest time until its first observation, in seconds."""


class OpenEnvServer:
    """One server process, and at most one session with it. Used by one thread.

    Its socket lies in a folder that only this user can enter (uvicorn itself lets everybody connect to it), so nothing
    listens on a port. What it prints is read, and only its last lines are kept.
    """

    def __init__(self, spec: ServerSpec) -> None:
        """Raises EmulatorError, with its last lines, for a server that does not become ready."""
        self._spec = spec
        self._until = time.monotonic() + spec.ready_s
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._session: ClientConnection | None = None
        self._open = ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="openenv-"))
        with on_error(self.close):
            self._process = self._started()
            threading.Thread(target=self._listen, name="openenv-log", daemon=True).start()
            self._wait_until_ready()

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """Returns the JSON behind a path, that of a POST with ``query``.

        Raises OSError, HTTPException, ValueError or RecursionError.
        """
        connection = _UnixHttp(self._socket, timeout=self._left_s())
        # the timeout is for each read, which may be of one byte
        with closing(connection), after(self._left_s(), connection.cut):
            if query is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(query), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise http.client.HTTPException(f"{path} answers {answer.status}")
            return json.loads(answer.read(_MOST_BYTES))

    def ask(self, message: str, limit_s: float | None = None) -> str:
        """Sends one of OpenEnv's WebSocket messages and returns the answer; the first message opens the session.

        Raises EmulatorError if the server ends, or says nothing for ``limit_s``; None: whoever runs it watches it.
        """
        try:
            if self._session is None:
                connected = unix_connect(
                    self._socket, "ws://localhost/ws", max_size=_MOST_BYTES, compression=None, ping_interval=None
                )
                self._session = self._open.enter_context(connected)
            self._session.send(message)
            return str(self._session.recv(limit_s))
        except TimeoutError as error:
            raise self._failed(f"did not answer within {limit_s:g} s (emulator.ready_s)") from error
        except (OSError, WebSocketException) as error:
            raise self._failed(f"broke off a session: {error}") from error

    def end_session(self, _: Sequence[Any] = ()) -> Sequence[Any]:
        """Ends the session and waits until the server has; the next message opens another."""
        self._session = None
        self._open.close()
        return ()

    def close(self) -> None:
        """Ends the server; a second call is harmless."""
        self.end_session()
        process = getattr(self, "_process", None)
        if process is not None:
            process.terminate()
            reap(process, _END_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _socket(self) -> str:
        return str(self._folder / "s")

    def _left_s(self) -> float:
        return max(_LOOK_S, self._until - time.monotonic())

    def _started(self) -> subprocess.Popen[bytes]:
        if len(os.fsencode(self._socket)) > _LONGEST_PATH:
            raise EmulatorError(f"{self._folder} is too long a path for a socket; set TMPDIR to a shorter one")
        wanted = self._spec
        python = sys.executable if wanted.python is None else os.path.expanduser(wanted.python)
        variables = {**os.environ, **wanted.variables}
        if wanted.python is not None and "PYTHONPATH" not in wanted.variables:
            variables.pop("PYTHONPATH", None)  # ours, with packages of another Python
        if shutil.which(python) is None:
            raise self._unstartable(f"there is no {python}")
        command = [python, "-m", "uvicorn", wanted.app, "--uds", self._socket, "--no-access-log"]
        try:
            return subprocess.Popen(
                dying_with_this_process(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=None if wanted.project is None else os.path.expanduser(wanted.project),
                env=variables,
            )
        except OSError as error:
            raise self._unstartable(str(error)) from error

    def _unstartable(self, why: str) -> EmulatorError:
        remedy = "check emulator.python and emulator.project on this machine"
        return EmulatorError(f"the server of {self._spec.app} cannot be started: {why}; {remedy}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(_LONGEST_LINE):
                self._said.append(line.decode(errors="replace").strip())

    def _wait_until_ready(self) -> None:
        while time.monotonic() < self._until:
            if self._process.poll() is not None:
                raise self._failed(f"ended with status {self._process.returncode} before it was ready")
            try:
                self.get("/health")
                return
            except (OSError, ValueError, RecursionError, http.client.HTTPException):
                time.sleep(_LOOK_S)
        raise self._failed(f"was not ready within {self._spec.ready_s:g} s (emulator.ready_s)")

    def _failed(self, what: str) -> EmulatorError:
        time.sleep(_LOOK_S)  # for its last words
        said = " | ".join(list(self._said)[-5:])
        remedy = ""
        if "No module named" in said or "Could not import" in said:
            remedy = "; install it with emulator.packages, or name a Python that has it in emulator.python"
        return EmulatorError(f"the server of {self._spec.app} {what}{remedy}; its last lines: {said or 'none'}")


class HostedServer(OpenEnvServer):
    """One that a program on a worker has for its host (``worker_program.sessions``)."""

    def __init__(self, spec: ServerSpec, limit_s: float, variables: Mapping[str, str]) -> None:
        """``limit_s``: for one answer. ``variables`` are added to those of the spec. Raises EmulatorError."""
        super().__init__(replace(spec, variables={**spec.variables, **variables}))
        self._limit_s = limit_s

    def say(self, message: str) -> str:
        """Returns the answer to a message. Raises EmulatorError."""
        return self.ask(message, self._limit_s)


class _UnixHttp(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def connect(self) -> None:
        self.sock = self._own
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def cut(self) -> None:
        """Ends a read that goes on in another thread."""
        with suppress(OSError):
            self._own.shutdown(socket.SHUT_RDWR)
