"""The side of a relay that lacks the tensors: ``python -m digirl_dist.worker_program.relay_fetch --folder DIR``.

The host runs it and says on stdin what to fetch, from where, and with which key. The other worker may be anybody's: it
must show the host key that the host knows, and a file appears only if its bytes have the SHA-256 that the host told.
Ends with stdin.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from digirl_dist.child_process import write_all
from digirl_dist.errors import DigirlDistError, TrajectoryError, WorkerError
from digirl_dist.plain_text import host_and_port
from digirl_dist.protocol.job_folder import JobFolder, blob_name
from digirl_dist.protocol.messages import shortened
from digirl_dist.protocol.relay import MOST_OF_REQUESTS, Fetch, Fetched, Tensor, decode, encode
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.courier import CourierClient, Get
from digirl_dist.ssh.piped import PipedChannel, ProcessSession

_SAY_S = 0.5
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
    """Fetches what one request names into ``folder``, and reports how far it is."""

    def __init__(self, folder: JobFolder, tensors: Sequence[Tensor]) -> None:
        """Names the files beside the tensors, for the courier verifies less and must not continue them."""
        places = [(tensor, folder.blob(tensor.digest).with_suffix(".relay")) for tensor in tensors]
        self._waiting = deque(
            Get(blob_name(tensor.digest), place, tensor.sha256, tensor.size, hashlib.sha256) for tensor, place in places
        )
        """In the order in which they come."""
        self._lock = threading.Lock()
        self._arrived: list[str] = []
        self._size = 0

    def fetch(self, courier: CourierClient) -> None:
        """Raises Refused, DigirlDistError or OSError; what has come by then stays."""
        wanted = list(self._waiting)
        try:
            self._drop(wanted)
            for got, problem in courier.get_many(wanted):
                if isinstance(problem, TrajectoryError):
                    raise Refused(f"it passes other bytes on as {got.local.stem} than the host told")
                if problem is not None:
                    raise problem
                os.replace(got.local, got.local.with_suffix(""))
                with self._lock:
                    self._arrived.append(got.local.stem)
                    self._size += got.size
                    self._waiting.popleft()
        finally:
            self._drop(wanted)

    def report(self, courier: CourierClient) -> None:
        """Tells the host how far it is until stdin ends: then the host is gone, or does not want it any more."""
        while not select.select([0], [], [], _SAY_S)[0]:
            self.say()
        courier.close()

    def say(self, error: str = "") -> None:
        """Tells the host what has come, and how much."""
        with self._lock, suppress(BrokenPipeError):
            size, self._arrived, arrived = self._size, [], self._arrived
            with suppress(FileNotFoundError):
                size += self._waiting[0].part.stat().st_size if self._waiting else 0
            write_all(1, encode(Fetched(arrived, size, shortened(error))))

    def _drop(self, wanted: Iterable[Get]) -> None:
        for each in wanted:
            each.part.unlink(missing_ok=True)


def fetch(folder: JobFolder, request: Fetch) -> None:
    """Fetches what is asked for, and reports to the host why not all of it came."""
    fetcher = Fetcher(folder, request.tensors)
    try:
        with _in_memory(_known_host(request)) as known_hosts, _in_memory(request.private_key) as identity:
            session = ProcessSession(_command(request, known_hosts, identity), os.environ)
            channel = PipedChannel(session, "there", "ssh", math.inf, 1.0, lambda wait_s: None)
            with CourierClient(channel, replace(SshSettings(), stall_s=math.inf)) as courier:
                threading.Thread(target=fetcher.report, args=[courier], daemon=True).start()
                fetcher.fetch(courier)
        fetcher.say()
    except WorkerError as error:
        fetcher.say(error.reason)
    except (DigirlDistError, OSError, Refused) as error:
        fetcher.say(str(error))


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


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] != "--folder":
        print(f"usage: python -m {__spec__.name} --folder DIR", file=sys.stderr)
        return 2
    folder = JobFolder(Path(argv[1]).expanduser().resolve())
    fetch(folder, decode(sys.stdin.buffer.readline(), Fetch, MOST_OF_REQUESTS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
