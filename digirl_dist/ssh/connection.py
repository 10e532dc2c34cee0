"""One verified SSH connection to a worker, whatever program carries it."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from digirl_dist.errors import LinkLostError, SilentError, WorkerError
from digirl_dist.ssh.channel import Channel, Deadline, in_short, last_lines
from digirl_dist.types import Closeable

FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_MOST_OUTPUT = 16 << 20
_PLAIN = re.compile(r"[\w@+:,./~ -]+", re.ASCII)
"""Text that means the same to every shell."""


@dataclass(frozen=True)
class Address:
    """Where a worker is. A field that is None comes from ~/.ssh/config, then from the defaults of ``ssh``."""

    name: str
    """The worker's name, used in every error."""
    host: str
    """Host name, address, or a ``Host`` of ~/.ssh/config."""
    port: int | None = None
    user: str | None = None
    key: str | None = None
    """Private key file. No other key is offered."""
    known_hosts: str | None = None
    """Known-hosts file. No other file is read."""


def user_name() -> str:
    """Returns this user's name, or the number where no user has it, as in a container that runs as any user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@dataclass(frozen=True)
class Completed:
    """A command that has ended. Status -1 means that a signal ended it. ``stderr`` holds at most its last MiB."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last lines of stderr, or of stdout if stderr is empty."""
        return last_lines(self.stderr.strip() or self.stdout.strip())


class Connection(Closeable):
    """An open connection. Every call ends at its own time limit, or when the link has been silent for too long."""

    address: Address
    host: str
    """The host name or address, after ~/.ssh/config."""
    port: int
    user: str
    fingerprint: str
    """The host key's fingerprint and kind."""

    @property
    def worker(self) -> str:
        return self.address.name

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def answers(self) -> bool:
        """Returns True if the machine answers within seconds, which tells a silent link from a silent command."""

    @abstractmethod
    def open(self, command: str | Sequence[str]) -> Channel:
        """Starts ``command`` and returns its channel.

        ``quote`` quotes a list; a string is a line for ``sh``. Raises LinkLostError, or WorkerError if the
        worker refuses another channel.
        """

    @abstractmethod
    def close(self) -> None:
        """Cuts the connection at once, without waiting for the worker."""

    def run(
        self,
        command: str | Sequence[str],
        input: bytes | Iterable[bytes] = b"",
        timeout_s: float = 60.0,
        most_bytes: int = _MOST_OUTPUT,
    ) -> Completed:
        """Runs ``command`` to its end and returns its output, whatever its exit status.

        Raises LinkLostError if the link breaks, WorkerError if the command does not end within ``timeout_s`` or prints
        more than ``most_bytes``.
        """
        deadline = Deadline(timeout_s)
        channel = self.open(command)
        errors: list[Exception] = []
        chunks = [input] if isinstance(input, bytes) else input
        # In its own thread, because the command may write output before it has read all input.
        threading.Thread(
            target=_feed, args=(channel, chunks, errors), name=f"ssh-input-{self.worker}", daemon=True
        ).start()
        try:
            output = bytearray()
            while chunk := channel.read(within=deadline):
                output += chunk
                if len(output) > most_bytes:
                    raise WorkerError(self.worker, f"`{channel.command}` printed more than {most_bytes >> 10} KiB")
            status = channel.wait(max(0.0, deadline.left_s))
            if errors:
                raise errors[0]
            return Completed(status, bytes(output), channel.stderr())
        except SilentError as error:
            raise WorkerError(self.worker, f"`{channel.command}` did not end within {timeout_s:g} s") from error
        finally:
            channel.close()


def too_many_channels(worker: str, line: str, reason: str) -> WorkerError:
    """Returns the error for a command that got no channel."""
    refused = f"sshd refuses to run `{in_short(line)}` ({reason})"
    return WorkerError(worker, refused, "raise MaxSessions in its sshd_config")


def broken_at_start(worker: str, line: str, reason: object) -> LinkLostError:
    """Returns the error for a command during whose start the link broke."""
    return LinkLostError(worker, f"the connection broke while starting `{in_short(line)}` ({reason})")


def quote(command: str | Sequence[str]) -> str:
    """Returns ``command`` as one line for ``sh``, which a text is already.

    A leading ``~/`` of an argument stays outside the quotes, so that the remote shell expands it to its own home.
    Everything else is literal.
    """
    return command if isinstance(command, str) else " ".join(_quote_one(argument) for argument in command)


def _quote_one(argument: str) -> str:
    if argument == "~" or argument == "~/":
        return argument
    return "~/" + shlex.quote(argument[2:]) if argument.startswith("~/") else shlex.quote(argument)


def for_login_shell(command: str | Sequence[str]) -> str:
    """Returns the line by which any login shell runs ``command``, which is one for ``sh`` if it is a text.

    What is not plain words goes to ``sh`` in octal: csh, tcsh and fish read quotes, ``!`` and backslashes otherwise.
    """
    line = quote(command)
    if _PLAIN.fullmatch(line):
        return line
    coded = "".join(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"\\0{byte:03o}" for byte in line.encode())
    return f"""exec sh -c 'eval "{"" if isinstance(command, str) else "exec "}$(printf %b "{coded}")"'"""


def _feed(channel: Channel, chunks: Iterable[bytes], errors: list[Exception]) -> None:
    """Writes a command's input; ``errors`` gets an exception of its source, if there is one."""
    try:
        for chunk in chunks:
            channel.write(chunk)
    except WorkerError:
        pass  # the command has ended or the link is gone; the reader of its output finds out which
    except Exception as error:
        errors.append(error)
    channel.close_input()
