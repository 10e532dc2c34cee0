"""paramiko's transport, with bounds and a watchdog that notices a dead peer, and commands on its channels."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, cast

import paramiko
from paramiko.common import (
    DEFAULT_WINDOW_SIZE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.packet import Packetizer

from digirl_dist.errors import LinkLostError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, Channel, Deadline
from digirl_dist.ssh.connection import FAST_CIPHERS

_MOST_BEFORE_LOGIN = 1 << 20
_MOST_UNREAD = 2 * DEFAULT_WINDOW_SIZE
"""Bytes of one channel that nobody has read: no server that heeds the window sends more than that has."""
_LONGEST_PACKET = 1 << 19
"""paramiko asks for 32 KiB, and OpenSSH never sends more than 256 KiB."""


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

    def heard(self) -> float:
        """Returns when data last arrived, in monotonic seconds."""
        return cast(HeardSocket, self.sock).heard


def open_transport(sock: Any, disabled_algorithms: Any = None, *, settings: SshSettings) -> Transport:
    """Returns a transport with fast ciphers over ``sock``; the ``transport_factory`` of paramiko's client."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            silence_ms = min(int(settings.silence_s * 1000), 2**31 - 1)  # Linux takes no more
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)
    heard = cast(Any, HeardSocket(sock))
    transport = Transport(heard, disabled_algorithms=disabled_algorithms, packetizer_class=_Packets)
    options = transport.get_security_options()
    others = [cipher for cipher in options.ciphers if cipher not in FAST_CIPHERS]
    options.ciphers = (*FAST_CIPHERS, *others)
    return transport


class Watch:
    """Cuts the transport after ``silence_s`` without data from the peer.

    Cutting it wakes every blocked read and write, so no call on the connection outlasts a dead peer.
    """

    def __init__(self, transport: Transport, settings: SshSettings) -> None:
        self._transport = transport
        self._silence_s = settings.silence_s
        self._every_s = min(settings.ping_s, 1.0)
        self._is_over = threading.Event()
        transport.packetizer.set_keepalive(settings.ping_s, transport.ping)
        threading.Thread(target=self._look, name="ssh-watch", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _look(self) -> None:
        heard, deadline = self._transport.heard(), Deadline(self._silence_s)
        asked_at = time.monotonic()
        while self._transport.is_active() and not self._is_over.wait(self._every_s):
            deadline.waited(asked_at)
            asked_at = time.monotonic()
            if (newest := self._transport.heard()) != heard:
                heard, deadline = newest, Deadline(self._silence_s)
            if deadline.left_s <= 0:
                self._transport.close()


_BROKEN = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko once a link or its channel is gone."""


class ParamikoChannel(Channel):
    """A ``Channel`` whose bytes are encrypted in this process."""

    packet_bytes = 32_704
    """Largest write that fits one packet of OpenSSH; measured to be faster than larger writes."""

    def __init__(self, raw: paramiko.Channel, worker: str, command: str, stall_s: float, slowest: float) -> None:
        super().__init__(worker, command, stall_s, slowest)
        # paramiko measures timeouts by the time of day: if that jumps back, they may take hours. So paramiko never
        # waits; this class does, on the monotonic clock.
        raw.settimeout(0.0)
        self._readable = threading.Event()
        raw.in_buffer.set_event(self._readable)
        self._raw = raw

    def close_input(self) -> None:
        with suppress(*_BROKEN):  # the command has ended; the next read reports it better
            self._raw.shutdown_write()

    @property
    def exit_status(self) -> int | None:
        return self._raw.exit_status if self._raw.exit_status_ready() else None

    def close(self) -> None:
        with suppress(*_BROKEN):  # the link is gone, and the channel with it
            self._raw.close()

    def _offer(self, view: memoryview, wait_s: float) -> int:
        with self._raw.out_buffer_cv:
            if self._raw.out_window_size == 0 and not self._raw.closed:
                self._raw.out_buffer_cv.wait(wait_s)
        try:
            sent = self._raw.send(view[: self.packet_bytes])  # type: ignore[arg-type]  # any buffer will do
        except TimeoutError:
            return 0
        except _BROKEN as error:
            raise self.ended() from error
        if sent == 0:
            raise self.ended()
        return sent

    def _take_in(self, wait_s: float) -> bytes | None:
        self._readable.wait(wait_s)
        try:
            return self._raw.recv(READ_BYTES)
        except TimeoutError:
            return None
        except _BROKEN as error:  # recv sends window adjustments to the other side
            raise self._link_ended() from error

    def _take_in_stderr(self) -> bytes:
        return self._raw.recv_stderr(READ_BYTES) if self._raw.recv_stderr_ready() else b""

    def _wait_for_end(self, timeout_s: float) -> bool:
        return self._raw.status_event.wait(timeout_s)

    def _lost(self) -> LinkLostError | None:
        """paramiko closes the channels of a broken link a moment before it marks the transport inactive.

        Hence the wait in the one ambiguous case: a command without an exit status, which otherwise means that a signal
        ended it.
        """
        closed = self._raw.closed
        if self._raw.exit_status != -1:
            return None
        transport = self._raw.get_transport()
        if closed and transport.is_active():
            transport.join(LINK_END_S)
        return None if transport.is_active() else self._link_ended()

    def _link_ended(self) -> LinkLostError:
        silent_s = time.monotonic() - cast(Transport, self._raw.get_transport()).heard()
        return self._link_lost(f"last heard {silent_s:.0f} s ago")
