"""The client of adb servers: at a TCP port, or at a socket file that only its user can reach."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adbutils import AdbClient, AdbConnection, AdbTimeout

from digirl_dist.plain_text import host_and_port


class Address(Protocol):
    """Where a server listens; as text, how messages name it."""

    @property
    def words(self) -> tuple[list[str], Path | None]:
        """What the adb program is told of it, and the folder in which it must be run."""

    def connect(self, limit_s: float) -> socket.socket:
        """Raises OSError."""


@dataclass(frozen=True)
class TcpAddress:
    """Where servers listen that somebody else has started."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)

    @property
    def words(self) -> tuple[list[str], Path | None]:
        return ["-L", f"tcp:{self}"], None

    def connect(self, limit_s: float) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=limit_s)


@dataclass(frozen=True)
class SocketFile:
    """Where our own servers listen."""

    folder: Path
    name: str

    def __str__(self) -> str:
        return str(self.folder / self.name)

    @property
    def words(self) -> tuple[list[str], Path | None]:
        return ["-L", f"localfilesystem:{self.name}"], self.folder  # the path may be too long for a socket

    def connect(self, limit_s: float) -> socket.socket:
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(limit_s)
            link.connect(f"/proc/self/fd/{folder}/{self.name}")  # the path itself may be too long for a socket
        except BaseException:
            link.close()
            raise
        finally:
            os.close(folder)
        return link


class Client(AdbClient):  # type: ignore[misc]  # the library is untyped
    """The library's client, for any address. It starts no server where there is none."""

    def __init__(self, address: Address, answer_s: float) -> None:
        super().__init__(socket_timeout=answer_s)
        self._address, self._answer_s = address, answer_s

    def make_connection(self, timeout: float | None = None) -> AdbConnection:
        return _Connection(self._address, timeout or self._answer_s)


class _Connection(AdbConnection):  # type: ignore[misc]
    def __init__(self, address: Address, limit_s: float) -> None:
        self._address, self._limit_s = address, limit_s
        super().__init__(str(address), 0)

    def _safe_connect(self) -> socket.socket:
        try:
            return self._address.connect(self._limit_s)
        except TimeoutError as error:
            raise AdbTimeout("connect to adb server timeout") from error
