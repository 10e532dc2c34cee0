"""Below SSH's channels: TCP options, ciphers, and a watchdog that notices a dead peer."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any, ClassVar, cast

import paramiko
from paramiko.common import (
    DEFAULT_WINDOW_SIZE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.packet import Packetizer

from digirl_dist.settings import SshSettings
from digirl_dist.strands.lookout import LOOKOUT, Once
from digirl_dist.strands.strand import ALL

_MOST_BEFORE_LOGIN = 1 << 20
_MOST_UNREAD = 2 * DEFAULT_WINDOW_SIZE
"""Bytes of one channel that nobody has read: no server that heeds the window sends more than that has."""
_LONGEST_PACKET = 1 << 19
"""paramiko asks for 32 KiB, and OpenSSH never sends more than 256 KiB."""
_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class HeardSocket:
    """A socket, or paramiko's substitute for one, that records when it last received data.

    Until the login is over, it ends after ``_MOST_BEFORE_LOGIN`` bytes: paramiko keeps a greeting that never ends.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.send = sock.send
        self.heard = time.monotonic()
        self._left = float(_MOST_BEFORE_LOGIN)

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        self.heard = time.monotonic()
        self._left -= len(data)
        return data if self._left >= 0 else b""

    def logged_in(self) -> None:
        self._left = math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Packets(Packetizer):
    """Packets of a bounded size: paramiko keeps as many bytes as the first four of a packet announce."""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _LONGEST_PACKET:
            raise paramiko.SSHException(f"the server announces a packet of {n} bytes")
        return super().read_all(n, check_rekey)


def _within_window(feed: Callable[[paramiko.Channel, Any], None]) -> Callable[[paramiko.Channel, Any], None]:
    """Returns ``feed`` for a server that may ignore the window, as paramiko keeps whatever comes."""

    def fed(channel: paramiko.Channel, message: Any) -> None:
        feed(channel, message)
        unread = len(channel.in_buffer) + len(channel.in_stderr_buffer)
        if unread > _MOST_UNREAD:
            raise paramiko.SSHException(f"the server ignores the window: {unread} bytes are unread")

    return fed


class Transport(paramiko.Transport):
    """A transport whose keepalive demands an answer, and that ends with a server that ignores the window.

    paramiko's own keepalive expects none, and TCP is satisfied as long as the other kernel lives, so neither notices a
    frozen ``sshd``.
    """

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_DATA: _within_window(paramiko.Channel._feed),  # type: ignore[attr-defined]
        MSG_CHANNEL_EXTENDED_DATA: _within_window(paramiko.Channel._feed_extended),  # type: ignore[attr-defined]
    }

    def ping(self) -> None:
        """Sends a request that every SSH server must answer, if only with "unknown request" (RFC 4254, section 4)."""
        message = paramiko.Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_user_message(message)  # type: ignore[attr-defined]

    def logged_in(self) -> None:
        """Takes in whatever comes from now on."""
        cast(HeardSocket, self.sock).logged_in()

    def ping_when_quiet(self, every_s: float) -> None:
        self.packetizer.set_keepalive(every_s, self.ping)

    def heard(self) -> float:
        """Returns when data last arrived, in monotonic seconds."""
        return cast(HeardSocket, self.sock).heard

    def silent_s(self) -> float:
        """Returns the seconds since data last arrived."""
        return time.monotonic() - self.heard()


def open_transport(sock: Any, disabled_algorithms: Any = None, *, settings: SshSettings) -> Transport:
    """Returns a transport with fast ciphers over ``sock``; the ``transport_factory`` of paramiko's client."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.silence_s * 1000))
    heard = cast(Any, HeardSocket(sock))
    transport = Transport(heard, disabled_algorithms=disabled_algorithms, packetizer_class=_Packets)
    options = transport.get_security_options()
    others = [cipher for cipher in options.ciphers if cipher not in _FAST_CIPHERS]
    options.ciphers = (*_FAST_CIPHERS, *others)
    return transport


class Watch:
    """Cuts the transport after ``silence_s`` without data from the peer.

    Cutting it wakes every blocked read and write, so no call on the connection outlasts a dead peer.
    """

    def __init__(self, transport: Transport, settings: SshSettings) -> None:
        self._transport = transport
        self._silence_s = settings.silence_s
        self._every_s = min(settings.ping_s, 1.0)
        self._is_over = False
        self._heard = transport.heard()
        self._heard_at = LOOKOUT.now
        transport.ping_when_quiet(settings.ping_s)
        self._look_later()

    def stop(self) -> None:
        self._is_over = True

    def _look_later(self) -> None:
        LOOKOUT.at(LOOKOUT.now + self._every_s, Once(self._look))

    def _look(self) -> None:
        if self._is_over or not self._transport.is_active():
            return
        self._look_later()
        if (heard := self._transport.heard()) != self._heard:
            self._heard, self._heard_at = heard, LOOKOUT.now
        if LOOKOUT.now - self._heard_at > self._silence_s:
            ALL.run(self._transport.close)  # which waits for its thread
            self._is_over = True
