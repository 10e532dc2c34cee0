"""The side of a relay that has the tensors: ``python -m digirl_dist.worker_program.relay_source allow --folder DIR``.

``allow`` is what the host runs. It lets a key of the host's into the user's authorized_keys for as long as its stdin is
open, for one command: ``serve``, which gives away files of ``DIR/blobs`` to whoever knows their digests. The line there
ends by itself when nobody renews it, as after the machine has lost its power.
"""

from __future__ import annotations

import hashlib
import os
import select
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from digirl_dist.child_process import SOURCE
from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import shortened
from digirl_dist.protocol.relay import MOST_OF_REQUESTS, Offer, Offered, Tensor, Wanted, decode, encode
from digirl_dist.worker_program import authorized_keys

_LIFETIME_S = 3600.0
_LOOK_S = 10.0
_LOOKS = 3
"""So often in a row the worker program must be gone before the key goes: one that is replaced has a successor soon."""
_THERE_S = 0.05


def allow(folder: JobFolder) -> int:
    """Lets the key in until stdin ends, this process is told to end, or the worker program is gone."""
    told, tell = os.pipe()  # rather than an exception, which could come while the key is withdrawn
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(tell, b"\n"))
    file = authorized_keys.default_file()
    command = shlex.join(
        ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", __spec__.name, "serve", "--folder", str(folder.root)]
    )
    try:
        offer = decode(sys.stdin.buffer.readline(), Offer)
        owner = hashlib.sha256(offer.public_key.encode()).hexdigest()[:16]  # machines may share home, name and path
        authorized_keys.allow(file, owner, offer.public_key, command, _LIFETIME_S)
    except (OSError, ValueError, ProtocolError) as error:
        _say(encode(Offered(shortened(f"the relay's key cannot be let into {file}: {error}"))))
        return 1
    try:
        _say(encode(Offered()))
        missed, renew_at = 0, time.monotonic() + _LIFETIME_S / 2
        while missed < _LOOKS and not select.select([0, told], [], [], _LOOK_S)[0]:
            missed = 0 if folder.program() is not None else missed + 1
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + _LIFETIME_S / 2
                authorized_keys.allow(file, owner, offer.public_key, command, _LIFETIME_S)
    finally:
        authorized_keys.withdraw(file, owner)
    return 0


def serve(folder: JobFolder) -> int:
    """Sends each wanted tensor as soon as it is there, until all are sent or the other side is gone."""
    wanted = set(decode(sys.stdin.buffer.readline(MOST_OF_REQUESTS), Wanted, MOST_OF_REQUESTS).digests)
    with suppress(BrokenPipeError):
        while wanted:
            for digest in wanted & set(os.listdir(folder.blobs)):
                if _sent(folder.blob(digest), digest):
                    wanted.remove(digest)
            if wanted and select.select([0], [], [], _THERE_S)[0]:
                return 1
    return 0


def _sent(path: Path, digest: str) -> bool:
    """Returns False if the tensor has been deleted meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        size = os.fstat(file).st_size
        _say(encode(Tensor(digest, size)))
        offset = 0
        while offset < size:
            sent = os.sendfile(1, file, offset, size - offset)
            if not sent:
                raise SystemExit(f"{path} shrank while it was sent")
            offset += sent
        return True
    finally:
        os.close(file)


def _say(line: bytes) -> None:
    while line:
        line = line[os.write(1, line) :]


def main(argv: list[str]) -> int:
    actions = {"allow": allow, "serve": serve}
    if len(argv) != 3 or argv[0] not in actions or argv[1] != "--folder":
        print(f"usage: python -m {__spec__.name} allow|serve --folder DIR", file=sys.stderr)
        return 2
    return actions[argv[0]](JobFolder(Path(argv[2]).expanduser().resolve()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
