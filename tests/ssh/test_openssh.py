"""What only the user's own ``ssh`` does: all of its configuration, and a process that must not be left behind."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from process_watch import eventually, nothing_is_left_of

from digirl_dist import child_process
from digirl_dist.errors import HostKeyError, LinkLostError, LoginError, SettingsError, UnreachableError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.carriers import carrier
from digirl_dist.ssh.carriers.openssh import OpenSshConnection, _asked, _configuration
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.mux import MuxSession
from digirl_dist.ssh.openssh_log import Target, explain, fingerprint, last_words
from digirl_dist.ssh.reachable import reach

pytestmark = pytest.mark.component

if TYPE_CHECKING:
    from conftest import Server


@pytest.fixture
def limits() -> SshSettings:
    return SshSettings(transport="openssh", connect_s=5.0, login_s=5.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def known(home: Path, address: Address) -> None:
    assert address.known_hosts is not None
    (home / ".ssh/known_hosts").write_text(Path(address.known_hosts).read_text())


def login(address: Address) -> str:
    return f" HostName 127.0.0.1\n Port {address.port}\n User {address.user}\n IdentityFile {address.key}\n"


def test_matches_includes_and_a_chain_of_jump_hosts_are_followed(
    openssh: Server, limits: SshSettings, home: Path
) -> None:
    known(home, openssh.address)
    (home / ".ssh/more").write_text(f"Match host first,second,third exec true\n{login(openssh.address)}")
    (home / ".ssh/config").write_text(
        f"Include {home}/.ssh/more\nHost second\n ProxyJump first\nHost third\n ProxyJump second\n"
    )
    with connect(Address("w1", "third"), limits) as link:
        assert link.run(["echo", "arrived"]).stdout == b"arrived\n"
        assert (link.host, link.port, link.user) == ("127.0.0.1", openssh.address.port, openssh.address.user)
        assert link.fingerprint.startswith("SHA256:") and link.fingerprint.endswith("(ssh-ed25519)")


@pytest.mark.parametrize("careless", ["no", "accept-new", "ask"])
def test_a_careless_configuration_makes_no_stranger_welcome(
    openssh: Server, limits: SshSettings, home: Path, careless: str
) -> None:
    (home / ".ssh/config").write_text(f"Host *\n StrictHostKeyChecking {careless}\nHost w\n{login(openssh.address)}")
    with pytest.raises(HostKeyError, match="unknown host key"):
        connect(Address("w1", "w"), limits)
    assert not (home / ".ssh/known_hosts").exists()


@pytest.mark.parametrize("careless", ["no", "accept-new", "ask"])
def test_nor_does_it_behind_a_jump_host(openssh: Server, limits: SshSettings, home: Path, careless: str) -> None:
    lines = f"Host *\n StrictHostKeyChecking {careless}\n UserKnownHostsFile {home}/none\nHost jump behind\n"
    (home / ".ssh/config").write_text(f"{lines}{login(openssh.address)}Host behind\n ProxyJump jump\n")
    with pytest.raises(HostKeyError, match="unknown host key"):
        connect(Address("w1", "behind"), limits)


def test_a_configuration_that_ssh_cannot_read_is_named(limits: SshSettings, home: Path) -> None:
    (home / ".ssh/config").write_text("Nonsense yes\n")
    with pytest.raises(LoginError, match=r"Bad configuration option: nonsense.*correct ~/.ssh/config"):
        connect(Address("w1", "127.0.0.1"), limits)


def test_an_ssh_that_never_says_what_its_configuration_is_ends_in_time_with_all_that_it_started(
    limits: SshSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "ssh").write_text("#!/bin/sh\nsleep 600 & wait\n")
    (home / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr("digirl_dist.ssh.carriers.openssh._CONFIGURED_S", 0.5)
    with pytest.raises(UnreachableError, match=r"`ssh -G` did not end.*Match exec"):
        connect(Address("w1", "127.0.0.1"), limits)
    [machine] = reach([("w1", None)], limits)
    assert machine.resolves and "`ssh -G` did not end" in str(machine.defect)
    nothing_is_left_of(home)


@pytest.mark.unit
def test_ssh_drops_a_silent_link_when_the_settings_say_so() -> None:
    for silence_s, count in ((12.0, 5), (60.0, 29), (4.0, 1)):
        settings = SshSettings(ping_s=2.0, silence_s=silence_s)
        assert f"ServerAliveCountMax {count}" in list(_configuration(Address("w1", "w"), settings))


def test_connections_of_the_user_are_not_shared(openssh: Server, limits: SshSettings, home: Path) -> None:
    known(home, openssh.address)
    (home / ".ssh/config").write_text(
        f"Host *\n ControlMaster auto\n ControlPath {home}/socket\n ControlPersist 60\nHost w\n{login(openssh.address)}"
    )
    with connect(Address("w1", "w"), limits) as link:
        assert link.run("true").status == 0
        assert not (home / "socket").exists()


@pytest.mark.parametrize("name", ["100%hot", "100% zeal", 'the "new" one'])
def test_a_key_may_lie_in_a_folder_of_any_name(openssh: Server, limits: SshSettings, tmp_path: Path, name: str) -> None:
    assert openssh.address.key is not None and openssh.address.known_hosts is not None
    files = {each: tmp_path / name / each for each in ("key", "known_hosts")}
    files["key"].parent.mkdir()
    for each, file in files.items():
        shutil.copy(getattr(openssh.address, each), file)
    address = dataclasses.replace(openssh.address, **{each: str(file) for each, file in files.items()})
    with connect(address, limits) as link:
        assert link.run(["echo", "arrived"]).stdout == b"arrived\n"


def test_nobody_else_can_enter_the_folder_of_the_socket_and_it_goes_with_the_connection(
    openssh: Server, limits: SshSettings
) -> None:
    with connect(openssh.address, limits) as link:
        assert link.alive
        [folder] = {path for path in Path("/tmp").glob("digirl-ssh-*/*") if _master(path)}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        master = _master(folder)
        assert master is not None
    assert not folder.exists() and not psutil.pid_exists(master)


_HOST = """
import sys, time
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.carriers.openssh import OpenSshConnection, _asked, _configuration
from digirl_dist.ssh.reachable import reach
import threading
links = []
starter = threading.Thread(target=lambda: links.append(connect(Address("w1", *eval(sys.argv[1])), SshSettings())))
starter.start(); starter.join()
channel = links[0].open("echo up; exec sleep 600")
print(channel.readline().decode(), flush=True)
time.sleep(600)
"""


def test_a_host_that_is_killed_leaves_no_ssh_behind(openssh: Server) -> None:
    place = repr(dataclasses.astuple(openssh.address)[1:])
    command, output = [sys.executable, "-c", _HOST, place], subprocess.PIPE
    with subprocess.Popen(command, stdout=output, env=child_process.environment()) as host:
        assert host.stdout is not None and host.stdout.readline() == b"up\n"
        [master] = [child.pid for child in psutil.Process(host.pid).children() if child.name() == "ssh"]
        host.send_signal(signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(master))


_FORGETFUL = """
import atexit, sys
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
link = connect(Address("w1", *eval(sys.argv[1])), SshSettings())
atexit.register(lambda: print(link.run(["echo", "last words"]).stdout.decode(), end="", flush=True))
"""


def test_a_link_stands_until_what_is_done_at_the_exit_of_its_process_is_done(openssh: Server) -> None:
    place = repr(dataclasses.astuple(openssh.address)[1:])
    command, output = [sys.executable, "-c", _FORGETFUL, place], subprocess.PIPE
    done = subprocess.run(command, stdout=output, stderr=output, env=child_process.environment(), timeout=120)
    assert (done.stdout, done.returncode) == (b"last words\n", 0), done.stderr


def test_a_command_that_starts_while_the_connection_is_closed_keeps_no_descriptors(
    openssh: Server, limits: SshSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = connect(openssh.address, limits)
    assert isinstance(link, OpenSshConnection)
    start, started = link._session, []

    def close_meanwhile(line: str, timeout_s: float) -> MuxSession:
        started.append(start(line, timeout_s))
        link.close()
        return started[0]

    monkeypatch.setattr(link, "_session", close_meanwhile)
    with pytest.raises(LinkLostError, match="broke while starting"):
        link.open("cat")
    assert started[0].pipes.are_closed


def test_what_ssh_counts_at_its_end_is_no_reason_for_it() -> None:
    counted = "Transferred: sent 2080, received 2104 bytes, in 0.0 seconds\nBytes per second: sent 1.4, received 1.5"
    assert last_words(f"debug1: channel 0: free\n{counted}\n") == "`ssh` ended without a word"
    assert last_words(f"Connection to h closed by remote host.\n{counted}") == "Connection to h closed by remote host."


@pytest.mark.unit
def test_a_machine_that_takes_the_key_and_lets_nobody_in_is_looked_at_and_not_the_key() -> None:
    log = "debug1: Server accepts key: k ED25519 SHA256:x\nConnection closed by 10.0.0.1 port 22\n"
    error = explain(log, Address("w1", "w"), Target("h", 22, "u", "w", []), SshSettings(), [])
    assert "accepted the key, and then closed" in str(error) and "/etc/nologin" in error.remedy


@pytest.mark.unit
def test_a_greeting_puts_no_command_into_a_remedy() -> None:
    forged = (
        "No x host key is known for a|e;touch and you have requested strict checking.\nHost key verification failed.\n"
    )
    address, target = Address("w1", "w"), Target("h", 22, "u", "w", [Path("known")])
    remedy = explain(forged, address, target, SshSettings(), []).remedy
    assert "`ssh-keyscan -t unknown h >> known`" in remedy and "touch" not in remedy


def test_openssh_that_is_asked_for_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert carrier(SshSettings()).__name__.endswith(".paramiko")  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="ssh.transport=openssh: this machine has no `ssh`"):
        carrier(SshSettings(transport="openssh"))
    with pytest.raises(SettingsError, match="ssh.transport: there is no 'open'; did you mean 'openssh'?"):
        carrier(SshSettings(transport="open"))


def _master(folder: Path) -> int | None:
    """The ``ssh`` of this process with that folder."""
    for child in psutil.Process(os.getpid()).children():
        with suppress(psutil.Error):  # it has ended meanwhile
            if str(folder / "socket") in child.cmdline():
                return child.pid
    return None


def test_a_machine_behind_another_one_is_not_looked_for_directly(limits: SshSettings, home: Path) -> None:
    (home / ".ssh/more").write_text("Host hidden\n HostName nowhere.invalid\n ProxyJump gate.invalid\n")
    (home / ".ssh/config").write_text(f"Match exec true\n Include {home}/.ssh/more\n")
    hidden, unknown = reach([("hidden", None), ("no-such-machine.invalid", None)], limits)
    assert hidden.resolves and hidden.defect is None
    assert unknown.defect == "the host name no-such-machine.invalid is unknown"


def test_a_full_disk_of_this_host_is_no_mistake_in_a_name(
    limits: SshSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/digirl-route-1")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    [machine] = reach([("w1", None)], limits)
    assert machine.resolves and "No space left on device: /tmp/digirl-route-1 -> make room on" in str(machine.defect)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_what_a_server_has_ssh_log_cannot_fill_the_disk(
    openssh: Server, limits: SshSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("digirl_dist.ssh.carriers.openssh._LONGEST_LOG", 3000)  # of some 8,000 bytes for a login
    with connect(openssh.address, limits) as link:
        assert isinstance(link, OpenSshConnection) and len(link._master.log()) <= 3000
        assert link.open("echo here").readline(5.0) == b"here\n"


def test_a_link_of_weeks_outlives_what_its_server_has_ssh_log(openssh: Server, limits: SshSettings) -> None:
    with connect(openssh.address, limits) as link:
        assert isinstance(link, OpenSshConnection)
        for _ in range(5):
            with (link._master._folder / "log").open("ab") as log:
                log.write(b"debug1: client_input_global_request: rtype keepalive@openssh.com want_reply 1\n" * 250_000)
            eventually(lambda: len(link._master.log()) < 16 << 20, what="a log of bounded size")
        assert link.open("echo here").readline(5.0) == b"here\n"
        assert link.alive and link.fingerprint in fingerprint(link._master.log())


def test_a_configuration_may_name_paths_in_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"Host *\n  IdentityFile /keys/cl\xe9\n")
    found = _asked(["ssh", "-F", str(tmp_path / "config"), "anywhere"], Address("w1", "anywhere"))
    assert os.fsencode(found["identityfile"]) == b"/keys/cl\xe9"


def test_a_home_may_have_a_name_in_any_encoding(
    openssh: Server, limits: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/cl\xe9"))
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    known(home, openssh.address)
    with connect(dataclasses.replace(openssh.address, known_hosts=None), limits) as link:
        assert link.run(["echo", "arrived"]).stdout == b"arrived\n"
