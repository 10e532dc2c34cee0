"""The side of a relay that lacks the tensors: ``python -m digirl_dist.worker_program.relay_fetch --folder DIR``.

The host runs it and says on stdin what to fetch, from where, and with which key. The other worker may be anybody's: it
must show the host key that the host knows, and a file appears only if its bytes have the SHA-256 that the host told.
Ends with stdin.
"""

from __future__ import annotations

import base64
import hashlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from digirl_dist.child_process import widen
from digirl_dist.errors import ProtocolError
from digirl_dist.plain_text import host_and_port
from digirl_dist.protocol.job_folder import JobFolder, blob_name
from digirl_dist.protocol.messages import shortened
from digirl_dist.protocol.relay import MOST_OF_REQUESTS, Answer, Fetch, Fetched, Tensor, decode, encode

_CHUNK = 1 << 20
_GATHER_S = 0.005
"""A pipe that had little is left alone so long: fewer turns for the same bytes, and it never fills up meanwhile."""
_SAY_S = 0.5
_ASKED_AHEAD = 8
_LONGEST_LINE = 1024
_CONNECT_S = 10
_MEMORY = "/dev/shm"
_SCAN_S = 15.0
_OPTIONS = {
    "BatchMode": "yes",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "PreferredAuthentications": "publickey",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "HostKeyAlias": "relay",
    "UpdateHostKeys": "no",
    "ForwardAgent": "no",
    "ClearAllForwardings": "yes",
    "ControlPath": "none",
    "PermitLocalCommand": "no",
    "LogLevel": "ERROR",
    "ConnectTimeout": str(_CONNECT_S),
    "ServerAliveInterval": "3",
    "ServerAliveCountMax": "4",
    "Ciphers": "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr",
}


class Refused(Exception):
    """The other worker cannot be reached, or is not to be believed."""


class Fetcher:
    """Fetches what one request names into ``folder``."""

    def __init__(self, folder: JobFolder, request: Fetch) -> None:
        self._folder = folder
        self._request = request
        self._waiting = deque(request.tensors)
        """Tensors that have not come, in the order in which they do."""
        self._asked = 0
        """How many of them were asked for."""
        self._buffer = memoryview(bytearray(_CHUNK))
        self._line = b""
        self._incoming: _Incoming | None = None
        self._arrived: list[str] = []
        self._size = 0
        self._said_at = 0.0

    def run(self) -> None:
        """Raises Refused, OSError or ProtocolError; what has come by then stays."""
        known = _known_host(self._request)
        with _in_memory(known) as known_hosts, _in_memory(self._request.private_key) as identity:
            process = subprocess.Popen(
                _command(self._request, known_hosts, identity),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
            try:
                self._receive(process)
            finally:
                process.kill()
                process.wait()
                self.drop()

    def say(self, error: str = "") -> None:
        """Tells the host how far it is."""
        line = encode(Fetched(self._arrived, self._size, shortened(error)))
        self._arrived, self._said_at = [], time.monotonic()
        while line:
            line = line[os.write(1, line) :]

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        stream = process.stdout.fileno()
        widen(stream, _CHUNK)
        while not self.is_done:
            with suppress(BrokenPipeError):  # why it has ended, it says itself
                process.stdin.write(self.requests())
            ready = select.select([stream, 0], [], [], _SAY_S)[0]
            if 0 in ready:
                raise SystemExit(1)  # the host is gone, or does not want it any more
            if stream in ready:
                count = os.readv(stream, [self._buffer])
                if not count:
                    raise Refused(_last_words(process))
                self.take_in(self._buffer[:count])
                if count < _CHUNK // 4:
                    time.sleep(_GATHER_S)
            if time.monotonic() - self._said_at > _SAY_S:
                self.say()

    @property
    def is_done(self) -> bool:
        return not self._waiting

    def requests(self) -> bytes:
        """Returns requests for some tensors more than have come, so that the next are on their way meanwhile."""
        more = list(islice(self._waiting, self._asked, _ASKED_AHEAD))
        self._asked += len(more)
        return b"".join(b'{"get": "%s", "offset": 0}\n' % blob_name(each.digest).encode() for each in more)

    def drop(self) -> None:
        """Removes what came of a tensor that is not whole."""
        if self._incoming is not None:
            self._incoming.drop()

    def take_in(self, data: memoryview) -> None:
        """Writes what the other worker sent. Raises Refused or ProtocolError for what the host did not tell of."""
        while data:
            if self._incoming is None:
                data = self._begin(data)
            else:
                taken = data[: self._incoming.left]
                self._incoming.write(taken)
                self._size += len(taken)
                data = data[len(taken) :]
            if self._incoming is not None and not self._incoming.left:
                self._finish(self._incoming)

    def _begin(self, data: memoryview) -> memoryview:
        """Reads the line before a tensor; returns what follows it."""
        head, end, _ = bytes(data[:_LONGEST_LINE]).partition(b"\n")
        self._line += head + end
        if end:
            answer, self._line = decode(self._line, Answer, _LONGEST_LINE), b""
            if not self._asked or answer.error is not None:
                raise Refused(f"it answers what nobody asked: {answer.error}")
            wanted = self._waiting[0]
            if wanted.size != answer.size:
                raise Refused(f"it offers {answer.size} bytes as {wanted.digest}, which has {wanted.size}")
            self._incoming = _Incoming(self._folder.blob(wanted.digest), wanted)
        elif len(self._line) >= _LONGEST_LINE:
            raise Refused("it does not speak the courier's protocol")
        return data[len(head) + len(end) :]

    def _finish(self, incoming: _Incoming) -> None:
        if not incoming.appears():
            raise Refused(f"it passes other bytes on as {incoming.wanted.digest} than the host told")
        self._incoming = None
        self._asked -= 1
        self._arrived.append(self._waiting.popleft().digest)


class _Incoming:
    """One tensor on its way: written beside, and under its name only once it is verified."""

    def __init__(self, path: Path, wanted: Tensor) -> None:
        self.wanted = wanted
        self.left = wanted.size
        self._path = path
        self._part = path.with_name(path.name + ".relay.part")  # never continued by the courier, which verifies less
        self._state = hashlib.sha256()
        self._part.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file: Any = open(os.open(self._part, flags, 0o644), "wb", buffering=0)

    def write(self, data: memoryview) -> None:
        self._state.update(data)
        self.left -= len(data)
        while data:
            data = data[self._file.write(data) :]

    def appears(self) -> bool:
        """Gives the file its name; returns False if it is not what was wanted."""
        self._file.close()
        if self._state.hexdigest() != self.wanted.sha256:
            return False
        os.replace(self._part, self._path)
        return True

    def drop(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def _known_host(request: Fetch) -> str:
    """Returns the line of known_hosts for the other worker. Raises Refused unless it shows the key that is known."""
    at = host_and_port(request.host, request.port)
    command = ["ssh-keyscan", "-T", str(_CONNECT_S), "-t", request.kind, "-p", str(request.port), "--", request.host]
    try:
        scanned = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SCAN_S)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{at} did not show its host key within {_SCAN_S:g} s") from error
    shown = [line.split()[-2:] for line in scanned.stdout.decode(errors="replace").splitlines() if line[:1] != "#"]
    for kind, key in (words for words in shown if len(words) == 2):
        with suppress(ValueError):
            digest = hashlib.sha256(base64.b64decode(key, validate=True)).digest()
            if "SHA256:" + base64.b64encode(digest).decode().rstrip("=") == request.host_key:
                return f"relay {kind} {key}\n"
    if shown:
        raise Refused(f"{at} shows another host key than the host knows of that worker")
    raise Refused(f"{at} cannot be reached from here")


def _command(request: Fetch, known_hosts: str, identity: str) -> list[str]:
    options = {**_OPTIONS, "UserKnownHostsFile": known_hosts}
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    to = ["-p", str(request.port), "-l", request.user, "-i", identity, "--", request.host]
    return ["ssh", "-F", "none", "-T", *given, *to, "digirl-dist-relay"]


@contextmanager
def _in_memory(content: str) -> Iterator[str]:
    """Makes a file that only this user can read and that no disk ever has; yields its path. Raises OSError."""
    with tempfile.TemporaryFile(dir=_MEMORY) as file:
        file.write(content.encode())
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _last_words(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    with suppress(subprocess.TimeoutExpired):
        process.wait(_CONNECT_S)
    os.set_blocking(process.stderr.fileno(), False)
    said = (process.stderr.read(4096) or b"").decode(errors="replace").strip()
    return f"the connection to it ended: {said or 'ssh says nothing'}"


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] != "--folder":
        print(f"usage: python -m {__spec__.name} --folder DIR", file=sys.stderr)
        return 2
    folder = JobFolder(Path(argv[1]).expanduser().resolve())
    fetcher = Fetcher(folder, decode(sys.stdin.buffer.readline(), Fetch, MOST_OF_REQUESTS))
    try:
        fetcher.run()
        fetcher.say()
    except (OSError, ProtocolError, Refused) as error:
        fetcher.say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
