"""Real SSH servers on the loopback interface: the embedded one, and OpenSSH's."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

import psutil
import pytest
from process_watch import eventually

from digirl_dist.parallel.free_port import free_port as unused_port
from digirl_dist.settings import SshSettings, SshTransport
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
            process.send_signal(number)


@pytest.fixture(params=[SshTransport.paramiko, SshTransport.openssh], ids=lambda transport: f"by_{transport.value}")
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
def _shared_openssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
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
        return _make_key(tmp_path / name, passphrase)

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
    """``sshd`` on a free loopback port with throw-away keys; it needs no root unless root runs it."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
    if sshd is None:
        if os.environ.get("CI") == "true":
            pytest.fail("sshd is missing: apt-get install openssh-server")
        pytest.skip("sshd is not installed")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    folder.mkdir(parents=True)
    for name in ("host_key", "user_key"):
        _make_key(folder / name)
    port = unused_port()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/user_key.pub {folder}/.ssh/authorized_keys\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        f"Subsystem sftp internal-sftp\nSetEnv HOME={folder}\n"  # no start-up files of the user's shell
    )
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "wb"))
        process = subprocess.Popen([sshd, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
        stack.callback(_end, process)
        eventually(lambda: _listens(port))
        keys = str(folder / "user_key"), str(folder / "known_hosts")
        yield Server(Address("w1", "127.0.0.1", port, getuser(), *keys), process.pid)


def _make_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", path], check=True)
    return path


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server with the sessions it has forked."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()
