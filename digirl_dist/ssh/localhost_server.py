"""The SSH server of the dry run: reaches workers on this machine over real SSH, without root and without ``sshd``.

``python -m digirl_dist.ssh.localhost_server FOLDER`` serves until its stdin ends, so it ends with its owner, however
that ends. (PDEATHSIG would not do: it arrives when the *thread* that started the process ends.)
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist.child_process import environment, reap
from digirl_dist.errors import SettingsError, UnreachableError, on_error
from digirl_dist.ssh.connection import FAST_CIPHERS, Address, user_name

if TYPE_CHECKING:
    import asyncssh

_CHUNK = 1 << 18
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 5.0


class LocalhostServer:
    """A server process on 127.0.0.1 for one worker, with throw-away keys in ``folder``.

    Runs each command (no terminal, no forwarding, no file transfer protocol) in its own process group, and kills the
    group when its channel closes. A process that called ``setsid`` survives, as it would under ``sshd``.
    """

    def __init__(self, name: str, folder: str | Path) -> None:
        self._name = name
        self._folder = Path(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Address:
        """Starts the server and returns its address.

        Raises SettingsError if asyncssh is missing, UnreachableError if the server does not start.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-m", "digirl_dist.ssh.localhost_server", str(self._folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment()
        )
        with on_error(self.stop):
            return self._address(self._announcement(self._process))

    @property
    def pid(self) -> int:
        """The server's process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Ends the server and its commands; returns within seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        reap(process, _STOP_LIMIT_S)
        process.stdout.close()

    def __enter__(self) -> Address:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _announcement(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Returns the one line that the server prints once it serves or has failed to."""
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        assert process.stdout is not None
        reader = threading.Thread(target=lambda out: lines.put(out.readline()), args=[process.stdout], daemon=True)
        reader.start()
        try:
            line = lines.get(timeout=_START_LIMIT_S)
        except queue.Empty:
            process.kill()
            reader.join()
            line = b""
        if not line:
            reason = f"the dry run's SSH server did not start within {_START_LIMIT_S:g} s or ended"
            raise UnreachableError(self._name, reason, "see its message above")
        announcement: dict[str, Any] = json.loads(line)
        return announcement

    def _address(self, announced: dict[str, Any]) -> Address:
        if announced.get("missing"):
            raise SettingsError("dry_run needs the package asyncssh -> pip install asyncssh, or set dry_run=false")
        if "error" in announced:
            raise UnreachableError(self._name, f"the dry run's SSH server cannot listen: {announced['error']}")
        return Address(
            name=self._name,
            host="127.0.0.1",
            port=announced["port"],
            user=user_name(),
            key=str(self._folder / "user_key"),
            known_hosts=str(self._folder / "known_hosts"),
        )


async def serve(folder: Path) -> None:
    """Listens on a free port, announces it on stdout, and serves until stdin ends."""
    import asyncssh

    host_key = asyncssh.generate_private_key("ssh-ed25519")
    user_key = asyncssh.generate_private_key("ssh-ed25519")
    commands = _Commands()
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(user_key.export_public_key().decode()),
        process_factory=commands.run,
        encoding=None,
        password_auth=False,
        kbdint_auth=False,
        gss_host=None,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        encryption_algs=FAST_CIPHERS,
        compression_algs=None,
        line_editor=False,
    )
    port = server.get_port()
    _write_private(folder / "user_key", user_key.export_private_key())
    public = host_key.export_public_key().decode()
    _write_private(folder / "known_hosts", f"[127.0.0.1]:{port} {public}".encode())
    print(json.dumps({"port": port}), flush=True)
    await _end_of_stdin()
    commands.kill_all()
    # _exit: the loop would wait for, and complain about, pipes that daemons of finished commands still hold.
    os._exit(0)


class _Commands:
    """The running commands, each a shell in its own process group."""

    def __init__(self) -> None:
        self._groups: set[int] = set()

    async def run(self, channel: asyncssh.SSHServerProcess[bytes]) -> None:
        """Runs the channel's command on the channel's streams until the command ends or the channel closes."""
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh",
            *(["-c", channel.command] if channel.command else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=_home(),
            limit=_CHUNK,
        )
        self._groups.add(shell.pid)
        finished = asyncio.create_task(_finish(channel, shell))
        closed = asyncio.create_task(channel.wait_closed())
        await asyncio.wait([finished, closed], return_when=asyncio.FIRST_COMPLETED)
        _kill_group(shell.pid)
        self._groups.discard(shell.pid)
        finished.cancel()
        closed.cancel()

    def kill_all(self) -> None:
        for group in self._groups:
            _kill_group(group)


async def _finish(channel: Any, shell: asyncio.subprocess.Process) -> None:
    """Relays the streams until the command ends, then reports its status after all of its output."""
    feeding = asyncio.create_task(_relay_input(channel.stdin, shell.stdin))
    speaking = asyncio.gather(
        _relay_output(shell.stdout, channel.stdout), _relay_output(shell.stderr, channel.stderr), return_exceptions=True
    )
    try:
        status = await shell.wait()
        await speaking
    finally:
        feeding.cancel()
    if status >= 0:
        channel.exit(status)
    else:
        channel.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _relay_input(source: Any, sink: Any) -> None:
    """Relays input to the command's stdin until the host closes it or the command stops reading."""
    import asyncssh

    try:
        await _relay_output(source, sink)
    except asyncssh.Error:
        pass  # the connection is gone; ``run`` sees the channel close and ends the command
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command closed its stdin or ended; its status tells how
    finally:
        sink.close()


async def _relay_output(source: Any, sink: Any) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()


async def _end_of_stdin() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def _home() -> Path:
    """Returns where commands start: as with ``sshd``, the root folder where the user has no home."""
    home = os.path.expanduser("~")
    return Path(home if os.access(home, os.X_OK) else "/")


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main(argv: list[str]) -> int:
    try:
        asyncio.run(serve(Path(argv[0])))
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}), flush=True)
        return 1
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
