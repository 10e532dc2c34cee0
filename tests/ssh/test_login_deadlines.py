"""A server that answers by drops, or not at all, is given up in time, wherever on the way to a command it begins to."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest
from ssh.conftest import Server

from digirl_dist.errors import UnreachableError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address

pytestmark = pytest.mark.component

NEVER_S = 30.0
"""Seconds that only a wait without end would take: ten times ``connect_s`` or ``login_s``."""


class Dripping:
    """Stands between a client and a server; from the byte number ``after`` on, the server's come one by one."""

    def __init__(self, port: int, after: float) -> None:
        self._server, self._after = port, after
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            threading.Thread(target=self._carry, args=[client, server, False], daemon=True).start()
            threading.Thread(target=self._carry, args=[server, client, True], daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, may_drip: bool) -> None:
        with source, target:
            try:
                while data := source.recv(1 if may_drip else 4096):
                    target.sendall(data)
                    self.passed += may_drip
                    if may_drip and self.passed > self._after:
                        time.sleep(0.3)
            except OSError:
                pass


@contextmanager
def dripping(server: Server, after: float) -> Iterator[tuple[Server, Dripping]]:
    relay = Dripping(server.address.port, after)
    known = server.address.known_hosts
    address = dataclasses.replace(server.address, port=relay.port, known_hosts=f"{known}.{relay.port}")
    assert known is not None and address.known_hosts is not None
    with open(known) as ours, open(address.known_hosts, "w") as theirs:
        theirs.write(ours.read().replace(f":{server.address.port}", f":{relay.port}"))
    yield dataclasses.replace(server, address=address), relay
    relay.close()


@pytest.fixture
def logged_in_after(openssh: Server, limits: SshSettings) -> int:
    """How many bytes the server sends until somebody is logged in."""
    with dripping(openssh, float("inf")) as (behind, relay), connect(behind.address, limits):
        return relay.passed


@pytest.mark.parametrize("stage", ["greeting", "key exchange", "login"])
def test_a_server_that_answers_by_drops_is_given_up_in_time(
    openssh: Server, limits: SshSettings, logged_in_after: int, stage: str
) -> None:
    after = {"greeting": 3, "key exchange": 100, "login": 0.7 * logged_in_after}[stage]
    with dripping(openssh, after) as (behind, _):
        started = time.monotonic()
        with pytest.raises(UnreachableError, match=r"within \d+ s|silent during the login"):
            connect(behind.address, dataclasses.replace(limits, connect_s=1.0, login_s=1.0))
        assert time.monotonic() - started < NEVER_S


def test_a_greeting_without_end_is_cut_off(openssh: Server, limits: SshSettings, tmp_path: Path) -> None:
    sent = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def flood() -> None:
            nonlocal sent
            client, _ = listener.accept()
            with client, suppress(OSError):
                while True:
                    sent += client.send(bytes(1 << 16).replace(b"\0", b"x"))

        threading.Thread(target=flood, daemon=True).start()
        with pytest.raises(UnreachableError):
            connect(dataclasses.replace(openssh.address, port=listener.getsockname()[1]), limits)
    assert sent < 32 << 20, "the kernel's buffers and the MiB that is read"


class Mute(paramiko.ServerInterface):
    """Lets everybody in, opens channels, answers pings, and says neither yes nor no to a command."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        channel.transport._send_user_message = lambda message: None  # type: ignore
        return True


@pytest.fixture
def mute(openssh: Server, tmp_path: Path) -> Iterator[Address]:
    host_key = paramiko.RSAKey.generate(2048)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n")

        def serve() -> None:
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(host_key)
            transport.start_server(server=Mute())

        threading.Thread(target=serve, daemon=True).start()
        yield dataclasses.replace(openssh.address, port=port, known_hosts=str(known))


def test_a_server_that_never_answers_a_command_is_given_up_in_time(mute: Address, limits: SshSettings) -> None:
    started = time.monotonic()
    with pytest.raises(UnreachableError):
        connect(mute, limits)
    assert time.monotonic() - started < NEVER_S
