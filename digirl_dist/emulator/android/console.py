"""The console of a running Android emulator: a line-based server on its even port (see ``adb emu help``)."""

from __future__ import annotations

import socket
from pathlib import Path

from digirl_dist.errors import EmulatorError
from digirl_dist.types import Closeable

_TOKEN = Path(".emulator_console_auth_token")
_CONNECT_LIMIT_S = 5.0
_LONGEST_LINE = 4096


class Console(Closeable):
    """One connection, logged in. Use as a context manager."""

    def __init__(self, port: int, limit_s: float) -> None:
        """``limit_s``: longest silence in an answer. Raises EmulatorError if it does not let us in."""
        self._name = f"console of emulator-{port}"
        try:
            self._link = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_LIMIT_S)
        except OSError as error:
            raise EmulatorError(f"{self._name} cannot be reached: {error}") from error
        self._link.settimeout(limit_s)
        self._lines = self._link.makefile("r", encoding="utf-8", errors="replace", newline="\n")
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, shown: str = "") -> list[str]:
        """The lines before ``OK``. Raises EmulatorError with the reason after ``KO``. ``shown`` is named in errors."""
        try:
            self._link.sendall(command.encode() + b"\r\n")
            return self._answer()
        except (EmulatorError, OSError) as error:
            raise EmulatorError(f"{self._name}: `{shown or command}`: {error}") from error

    def close(self) -> None:
        self._lines.close()
        self._link.close()

    def _log_in(self) -> None:
        try:
            greeting = "\n".join(self._answer())
        except (EmulatorError, OSError) as error:
            raise EmulatorError(f"{self._name} did not greet: {error}") from error
        if "Authentication required" in greeting:
            self.ask(f"auth {self._token()}", shown="auth …")

    def _answer(self) -> list[str]:
        """Raises OSError, or EmulatorError with the reason after ``KO``."""
        lines: list[str] = []
        while line := self._lines.readline(_LONGEST_LINE):
            text = line.strip()
            if text == "OK":
                return lines
            if text.startswith("KO"):
                raise EmulatorError(text.removeprefix("KO").lstrip(": ") or "refused")
            lines.append(text)
        raise EmulatorError("the connection was closed")

    def _token(self) -> str:
        try:
            return (Path.home() / _TOKEN).read_text().strip()
        except OSError as error:
            raise EmulatorError(
                f"{self._name} wants the token in ~/{_TOKEN}, which cannot be read: {error.strerror}"
            ) from error
