"""Below SSH's channels: TCP options, ciphers, and a watchdog that notices a dead peer."""

from __future__ import annotations

import math
import socket
import threading
import time
from typing import Any, cast

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import HELD_S

_MOST_BEFORE_LOGIN = 1 << 20
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


class Transport(paramiko.Transport):
    """A transport whose keepalive demands an answer.

    paramiko's own keepalive expects none, and TCP is satisfied as long as the other kernel lives, so neither notices a
    frozen ``sshd``.
    """

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
    transport = Transport(cast(Any, HeardSocket(sock)), disabled_algorithms=disabled_algorithms)
    options = transport.get_security_options()
    others = [cipher for cipher in options.ciphers if cipher not in _FAST_CIPHERS]
    options.ciphers = (*_FAST_CIPHERS, *others)
    return transport


class Watch:
    """A thread that cuts the transport after ``silence_s`` without data from the peer.

    Cutting it wakes every blocked read and write, so no call on the connection outlasts a dead peer.
    """

    def __init__(self, transport: Transport, settings: SshSettings, name: str) -> None:
        self.cut_after_s: float | None = None
        self._transport = transport
        self._silence_s = settings.silence_s
        self._stop = threading.Event()
        transport.ping_when_quiet(settings.ping_s)
        threading.Thread(target=self._watch, args=[settings.ping_s], name=f"ssh-watch-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, every_s: float) -> None:
        every_s = min(every_s, 1.0)
        looked_at = time.monotonic()
        while not self._stop.wait(every_s) and self._transport.is_active():
            silent_s = self._transport.silent_s()
            was_held = time.monotonic() - looked_at > every_s + HELD_S  # data may have arrived and still be unread
            looked_at = time.monotonic()
            if silent_s > self._silence_s and not was_held:
                self.cut_after_s = silent_s
                self._transport.close()
