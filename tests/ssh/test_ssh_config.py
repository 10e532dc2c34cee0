"""What ~/.ssh/config says of a machine, and how a connection fails by it; of each program what it can read."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from process_watch import nothing_is_left_of

from benchmarks import sshd
from digirl_dist.errors import HostKeyError, LinkLostError, LoginError, UnreachableError
from digirl_dist.parallel.loopback import free_port as unused_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.carriers.openssh import SocketFolders
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.reachable import reach

pytestmark = [pytest.mark.component, pytest.mark.long_file(30)]

if TYPE_CHECKING:
    from conftest import Server

_WORKER = Address("w1", "w")
_RELAY = """
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send() -> None:
    for data in iter(lambda: os.read(0, 65536), b""):
        there.sendall(data)
threading.Thread(target=send, daemon=True).start()
for data in iter(lambda: there.recv(65536), b""):
    os.write(1, data)
"""


@pytest.fixture
def ssh() -> SshSettings:
    """Limits where ``ssh`` carries the connection, which reads all of its configuration."""
    return SshSettings(connect_s=3.0, login_s=3.0, ping_s=0.3, silence_s=1.5, stall_s=4.0)


@dataclasses.dataclass
class Home:
    """A user's home, whose configuration leads to a server."""

    path: Path
    login: str
    """The lines of a ``Host`` that reach the server."""
    key: str
    """The server's host key, as known_hosts has it after the name."""
    name: str

    def configure(self, lines: str) -> None:
        (self.path / ".ssh/config").write_text(lines.replace("HOME", str(self.path)))

    def know(self, name: str, file: str = ".ssh/known_hosts") -> None:
        (self.path / file).write_text(f"{name} {self.key}")


@pytest.fixture
def home(openssh: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    address = openssh.address
    assert address.known_hosts is not None
    name, key = Path(address.known_hosts).read_text().split(maxsplit=1)
    login = f" HostName 127.0.0.1\n Port {address.port}\n User {address.user}\n IdentityFile {address.key}\n"
    home = Home(tmp_path, login, key, name)
    home.know(name)
    return home


def arrives(limits: SshSettings, address: Address = _WORKER) -> bool:
    with connect(address, limits) as link:
        return link.run("echo here").stdout == b"here\n"


@pytest.mark.parametrize(
    "lines",
    [
        "IgnoreUnknown UseKeychain,Other\nHost w\n UseKeychain yes\n{login}",
        "Host *\n ProxyJump none\n ProxyCommand none\nHost w\n{login}",
        "Host a b w\n{login}Host w\n ProxyJump a,b\n",
        "Host w\n IdentityFile {key}.pub\n{login}",
        "Host w\n ConnectTimeout none\n{login}",
        "# caf\xe9\nHost w\n{login}",
        "Host w\n RemoteCommand tmux\n RequestTTY force\n LocalForward 1 x:1\n SendEnv *\n LogLevel QUIET\n{login}",
    ],
    ids=["unknown", "none", "chain", "public", "endless", "latin", "commands"],
)
def test_what_ssh_takes_is_taken(openssh: Server, ssh: SshSettings, home: Home, lines: str) -> None:
    text = lines.format(login=home.login, key=openssh.address.key)
    (home.path / ".ssh/config").write_bytes(text.encode("latin-1"))
    assert arrives(ssh)


def test_the_hosts_of_a_chain_are_reached_in_their_order(ssh: SshSettings, home: Home) -> None:
    home.configure(
        f"Host first w\n{home.login}Host second\n HostName no-such.invalid\nHost w\n ProxyJump first,second\n"
    )
    with pytest.raises(UnreachableError, match=r"the jump host cannot reach no-such.invalid:22"):
        connect(_WORKER, ssh)


def test_an_ssh_that_is_missing_for_a_while_is_waited_for(
    openssh: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match=r"worker w1: ssh.transport=openssh: this machine has no `ssh`"):
        connect(openssh.address, SshSettings(transport="openssh"))


def test_a_lack_of_descriptors_is_not_told_as_a_configuration_to_correct(
    ssh: SshSettings, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    home.configure(f"Match exec true\nHost w\n{home.login}")
    arrives(ssh)
    monkeypatch.setattr("digirl_dist.ssh.processes.run_to_end", refused)
    with pytest.raises(OSError, match="Too many open files"):
        connect(_WORKER, ssh)


def test_included_files_are_read_and_the_block_around_them_goes_on(ssh: SshSettings, home: Home) -> None:
    (home.path / ".ssh/more").mkdir()
    (home.path / ".ssh/more/one").write_text("Host other\n Port 1\n")
    (home.path / ".ssh/more/two").write_text(home.login)
    (home.path / ".ssh/more/twigs").mkdir()
    home.configure("Host w\n Include more/one more/tw*\n User nobody-else\n")
    assert arrives(ssh)


@pytest.mark.parametrize(
    "lines",
    ["Host w\n Port abc\n", 'Host "w\n', "Match tagged x\n Port 2\n", "Match nonsense x\n Port 2\n"],
)
def test_what_cannot_be_read_is_told_and_never_passed_over(ssh: SshSettings, home: Home, lines: str) -> None:
    home.configure(f"{lines}Host w\n{home.login}")
    with pytest.raises(LoginError, match=r"cannot use .*correct ~/.ssh/config"):
        connect(_WORKER, ssh)
    [found] = reach([("w", None)], ssh)
    assert "correct ~/.ssh/config" in str(found.defect)


def test_what_paramiko_cannot_read_is_told(home: Home) -> None:
    home.configure(f"Host w\n Port abc\nHost w\n{home.login}")
    by_paramiko = SshSettings(transport="paramiko")
    with pytest.raises(LoginError, match=r"paramiko cannot use .*ssh.transport=openssh"):
        connect(_WORKER, by_paramiko)
    [found] = reach([("w", None)], by_paramiko)
    assert "correct ~/.ssh/config" in str(found.defect)


def test_a_key_is_looked_for_and_added_under_its_alias(limits: SshSettings, home: Home) -> None:
    home.configure(f"Host w\n HostKeyAlias alias\n{home.login}")
    with pytest.raises(HostKeyError) as caught:
        connect(_WORKER, limits)
    subprocess.run(caught.value.remedy.split("`")[1], shell=True, check=True, capture_output=True)
    assert arrives(limits)


def test_where_no_file_of_known_hosts_is_read_the_key_is_not_added_to_nothing(limits: SshSettings, home: Home) -> None:
    lines = f"Host w\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n{home.login}"
    home.configure(lines)
    with pytest.raises(HostKeyError) as caught:
        connect(_WORKER, limits)
    assert "take `UserKnownHostsFile` out" in caught.value.remedy and ">> /dev/null" not in caught.value.remedy
    home.configure(lines.replace(" UserKnownHostsFile /dev/null\n", ""))
    assert arrives(limits)


def test_a_changed_key_is_forgotten_in_the_file_that_has_it(
    limits: SshSettings, home: Home, make_key: Callable[..., Path]
) -> None:
    home.configure(f'Host w\n UserKnownHostsFile "HOME/.ssh/my file" HOME/.ssh/two\n{home.login}')
    (home.path / ".ssh/two").write_text(f"{home.name} {make_key('other').with_suffix('.pub').read_text()}")
    with pytest.raises(HostKeyError, match="has changed") as caught:
        connect(_WORKER, limits)
    assert caught.value.reason.count("SHA256:") == 2
    subprocess.run(caught.value.remedy.split("`")[1], shell=True, check=True, capture_output=True)
    home.know(home.name, ".ssh/my file")
    assert arrives(limits)


def test_an_address_of_ipv6_is_reached(limits: SshSettings, tmp_path: Path, free_port: int) -> None:
    with pytest.raises(UnreachableError, match=rf"nothing listens at \[::1\]:{free_port}"):
        connect(Address("w1", "::1", free_port), limits)


def test_a_command_that_decides_what_counts_is_given_up_with_all_that_it_started(
    ssh: SshSettings, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("digirl_dist.ssh.carriers.openssh._CONFIGURED_S", 1.0)
    home.configure(f"Match exec \"sh -c 'sleep 600 & cd HOME; wait'\"\n Port 1\nHost w\n{home.login}")
    with pytest.raises(UnreachableError, match=r"did not end within 1 s.*look at `Match exec`"):
        connect(_WORKER, ssh)
    nothing_is_left_of(home.path)


def test_commands_of_a_match_decide(ssh: SshSettings, home: Home) -> None:
    lines = 'Match host w exec "exit 1"\n Port 1\nMatch host w !exec true\n Port 1\nMatch exec "test %n = v"\n Port 1\n'
    home.configure(f'{lines}Match host w exec "test %n = w"\n{home.login}')
    assert arrives(ssh)


@pytest.mark.parametrize("odd", ["a blank", "100%h", "[a]", "caf\xe9", "$HOME"])
def test_a_home_and_a_place_for_sockets_may_have_any_name(
    limits: SshSettings, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    home.configure(f"Host w\n{home.login}")
    if "$" not in odd:  # `ssh` would expand it in the name of a known-hosts file
        (home.path / ".ssh").rename((tmp_path / odd / ".ssh").parent.mkdir() or tmp_path / odd / ".ssh")
        monkeypatch.setenv("HOME", str(tmp_path / odd))
    with tempfile.TemporaryDirectory(prefix=odd) as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setattr("digirl_dist.ssh.carriers.openssh._FOLDERS", SocketFolders())
        assert arrives(limits)


@pytest.mark.parametrize("command", ["no-such-program %h", "sh -c 'echo no >&2; exit 1'"])
def test_a_proxy_command_that_fails_is_named(ssh: SshSettings, home: Home, command: str) -> None:
    home.configure(f"Host w\n ProxyCommand {command}\n{home.login}")
    with pytest.raises(UnreachableError, match=r"the ProxyCommand of ~/.ssh/config brought no connection to 127"):
        connect(_WORKER, ssh)


def test_a_proxy_command_that_dies_is_a_lost_link_and_costs_nothing(ssh: SshSettings, home: Home) -> None:
    (home.path / "relay.py").write_text(_RELAY)
    home.configure(f"Host w\n ProxyCommand {sys.executable} HOME/relay.py %h %p\n{home.login}")
    with connect(_WORKER, dataclasses.replace(ssh, silence_s=60.0)) as link:
        channel = link.open(["cat"])
        channel.write(b"x\n")
        assert channel.readline() == b"x\n"
        for process in psutil.Process().children(recursive=True):
            if str(home.path / "relay.py") in _words(process):
                process.kill()
        with pytest.raises(LinkLostError):
            channel.read(within=20.0)
        assert not link.alive
    worked_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - worked_s < 0.4


def test_a_server_that_hears_no_more_keys_is_a_refused_login(
    limits: SshSettings, tmp_path: Path, home: Home, make_key: Callable[..., Path]
) -> None:
    server = sshd.Sshd(tmp_path / "strict", more="MaxAuthTries 1")
    try:
        server.start()
        strangers = f" IdentityFile {make_key('one')}\n IdentityFile {make_key('two')}\n"
        home.configure(f"Host w\n HostName 127.0.0.1\n Port {server.port}\n{strangers}")
        (home.path / ".ssh/known_hosts").write_text((tmp_path / "strict/known_hosts").read_text())
        with pytest.raises(LoginError, match="does not let user .* in; keys offered: .*/one"):
            connect(_WORKER, limits)
    finally:
        server.close()


def test_the_machine_behind_a_jump_host_is_named_where_it_cannot_be_reached(limits: SshSettings, home: Home) -> None:
    port = unused_port()
    home.configure(f"Host gate\n{home.login}Host w\n HostName 127.0.0.1\n Port {port}\n ProxyJump gate\n")
    with pytest.raises(UnreachableError, match=f"the jump host cannot reach 127.0.0.1:{port}"):
        connect(_WORKER, limits)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
