"""Programs of this host that decide about a login, and never answer: each is named within the limits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from process_watch import eventually

from digirl_dist.errors import LoginError, UnreachableError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address

from .conftest import Server

pytestmark = pytest.mark.component


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A real agent without keys; its process."""
    path = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    eventually(path.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield running.pid
    running.kill()
    running.wait()


def without_key(server: Server) -> Address:
    return replace(server.address, key=None)


def test_an_agent_that_does_not_answer_is_named(openssh: Server, limits: SshSettings, agent: int) -> None:
    os.kill(agent, signal.SIGSTOP)
    with pytest.raises((LoginError, UnreachableError), match=r"the SSH agent .*answer.*`ssh-add -l`"):
        connect(without_key(openssh), limits)


def test_one_that_answers_or_is_gone_is_not_blamed(openssh: Server, limits: SshSettings, agent: int) -> None:
    for _ in range(2):
        with pytest.raises(LoginError, match="keys offered: none"):
            connect(without_key(openssh), limits)
        os.environ["SSH_AUTH_SOCK"] += "-gone"


def test_a_key_of_the_agent_lets_in(openssh: Server, limits: SshSettings, agent: int) -> None:
    subprocess.run(["ssh-add", "-q", str(openssh.address.key)], check=True)
    with connect(without_key(openssh), limits) as connection:
        assert connection.run(["echo", "in"]).stdout == b"in\n"


def test_a_proxy_command_that_never_connects_is_named(
    openssh: Server, limits: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its own ends with its user's entry in /etc/passwd, not with HOME
    monkeypatch.setattr("os.path.expanduser", lambda path: str(path).replace("~", str(tmp_path)))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host 127.0.0.1\n ProxyCommand sleep 600\n")
    with pytest.raises(UnreachableError, match=r"the ProxyCommand of ~/.ssh/config brought no"):
        connect(openssh.address, replace(limits, transport="openssh"))


def test_a_key_that_others_may_read_is_no_locked_one(openssh: Server, limits: SshSettings, tmp_path: Path) -> None:
    """``ssh`` refuses it; paramiko does not look."""
    key = Path(shutil.copy(str(openssh.address.key), tmp_path / "open"))
    key.chmod(0o644)
    limits = replace(limits, transport="openssh")
    with pytest.raises(LoginError, match=r"open cannot be used: bad permissions") as caught:
        connect(replace(openssh.address, key=str(key)), limits)
    assert "passphrase" not in str(caught.value)
