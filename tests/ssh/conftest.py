"""Real SSH servers on the loopback interface: the embedded one, and OpenSSH's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks import sshd
from digirl_dist.parallel.loopback import free_port as unused_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.localhost_server import LocalhostServer


@dataclass
class Server:
    """A server that runs, and how to mistreat it."""

    address: Address
    pid: int
    mistreated: bool = False

    def freeze(self) -> None:
        """Stop all its processes; their kernel goes on acknowledging packets."""
        self._signal_all(signal.SIGSTOP)

    def kill(self) -> None:
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        self.mistreated = True
        top = psutil.Process(self.pid)
        for process in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # a login's helper ends on its own
                process.send_signal(number)


@pytest.fixture(params=["paramiko", "openssh"], ids=lambda transport: f"by_{transport}")
def limits(request: pytest.FixtureRequest) -> SshSettings:
    """Short limits, for each program that may carry a connection."""
    return SshSettings(transport=request.param, connect_s=3.0, login_s=3.0, ping_s=0.3, silence_s=1.5, stall_s=4.0)


class Shared:
    """A server for all tests of a session, until one of them mistreats it: the next one gets another."""

    def __init__(self, start: Callable[[Path], AbstractContextManager[Server]], folders: Iterator[Path]) -> None:
        self._start = start
        self._folders = folders
        self._stack = ExitStack()
        self._server: Server | None = None

    def get(self) -> Server:
        if self._server is None or self._server.mistreated:
            self.close()
            self._server = self._stack.enter_context(self._start(next(self._folders)))
        return self._server

    def close(self) -> None:
        self._stack.close()


def _shared(
    start: Callable[[Path], AbstractContextManager[Server]], factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    shared = Shared(start, iter(lambda: factory.mktemp("server") / "files", None))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _shared_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    yield from _shared(_run_embedded, tmp_path_factory)


@pytest.fixture(scope="session")
def _shared_openssh(sshd_is_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    yield from _shared(_run_openssh, tmp_path_factory)


@pytest.fixture
def embedded(_shared_embedded: Shared) -> Server:
    return _shared_embedded.get()


@pytest.fixture
def openssh(_shared_openssh: Shared) -> Server:
    return _shared_openssh.get()


@pytest.fixture(params=["embedded", "openssh"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def link(server: Server, limits: SshSettings) -> Iterator[Connection]:
    with connect(server.address, limits) as connection:
        yield connection


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[..., Path]:
    """Makes a key pair of the given name, under a passphrase if wanted, and returns the private one's path."""

    def make(name: str, passphrase: str = "") -> Path:
        return sshd.make_key(tmp_path / name, passphrase)

    return make


@pytest.fixture
def free_port() -> int:
    """A port on which nothing listens."""
    return unused_port()


@contextmanager
def _run_embedded(folder: Path) -> Iterator[Server]:
    if os.environ.get("CI") != "true":
        pytest.importorskip("asyncssh")
    server = LocalhostServer("w1", folder)
    address = server.start()
    yield Server(address, server.pid)
    with suppress(psutil.NoSuchProcess):  # a test may have stopped or killed any of them
        for child in psutil.Process(server.pid).children(recursive=True):
            child.kill()
        psutil.Process(server.pid).resume()
    server.stop()


@contextmanager
def _run_openssh(folder: Path) -> Iterator[Server]:
    server = sshd.Sshd(folder)
    with ExitStack() as stack:
        stack.callback(server.close)
        server.start()
        assert server.process is not None
        yield Server(server.address("w1"), server.process.pid)
