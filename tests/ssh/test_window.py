"""Counted where bytes are meant: a server that ignores SSH's window, or announces a huge packet, fills no memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import paramiko
import pytest
from paramiko.packet import Packetizer
from process_watch import eventually

from digirl_dist.settings import SshSettings
from digirl_dist.ssh.paramiko_channel import Transport, open_transport

pytestmark = pytest.mark.component
MOST = 8 << 20
FLOOD = 256 << 20


class LetsIn(paramiko.ServerInterface):
    """Lets anybody in, and starts any command."""

    def get_allowed_auths(self, username: str) -> str:
        return "none"

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


@pytest.fixture
def ends() -> Iterator[tuple[Transport, paramiko.Transport]]:
    """Both ends of a connection, logged in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    server = paramiko.Transport(theirs)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(event=threading.Event(), server=LetsIn())
    client = open_transport(ours, settings=SshSettings())
    client.start_client(timeout=30.0)
    client.auth_none("user")
    client.logged_in()
    yield client, server
    client.close()
    server.close()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_server_that_ignores_the_window_is_hung_up(ends: tuple[Transport, paramiko.Transport], stream: str) -> None:
    client, server = ends
    channel = client.open_session(timeout=30.0)
    flooding = server.accept(30.0)
    flooding.out_window_size = 1 << 40
    send, data = flooding.sendall if stream == "stdout" else flooding.sendall_stderr, bytes(1 << 20)

    def flood() -> None:
        try:
            for _ in range(FLOOD // len(data)):
                send(data)
        except (OSError, EOFError):
            pass  # it was hung up

    sending = threading.Thread(target=flood, daemon=True)
    sending.start()
    eventually(lambda: not client.is_active(), 60, "the end of the connection")
    assert len(channel.in_buffer) + len(channel.in_stderr_buffer) <= MOST
    assert "ignores the window" in str(client.saved_exception)
    sending.join(30.0)


def test_a_server_that_heeds_the_window_is_read_whole(ends: tuple[Transport, paramiko.Transport]) -> None:
    client, server = ends
    channel = client.open_session(timeout=30.0)
    answering = server.accept(30.0)
    size = 3 * MOST

    def answer() -> None:
        answering.sendall(bytes(size))
        answering.close()

    threading.Thread(target=answer, daemon=True).start()
    came = 0
    while data := channel.recv(1 << 20):
        came += len(data)
    assert came == size


def test_a_packet_that_no_server_sends_is_not_read(
    ends: tuple[Transport, paramiko.Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a packet is not encrypted; whoever sits in between can write it as well."""
    client, server = ends
    raw: socket.socket = server.sock
    raw.sendall(struct.pack(">I", 1 << 31) + bytes(1 << 20))
    eventually(lambda: not client.is_active(), 60, "the end of the connection")
    assert "packet of" in str(client.saved_exception) and isinstance(client.packetizer, Packetizer)
