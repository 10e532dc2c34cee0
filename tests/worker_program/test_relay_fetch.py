"""What a worker accepts from another one: bytes of which the host told the SHA-256, and nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from digirl_dist.errors import ProtocolError, WorkerError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.relay import Answer, Offer, Tensor, decode, encode
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.courier import CourierClient
from digirl_dist.ssh.piped import PipedChannel, ProcessSession
from digirl_dist.worker_program.relay_fetch import Fetcher, Refused

pytestmark = pytest.mark.component

CONTENTS = {"aa": bytes(range(256)) * 40, "bb": b"", "cc": b"x" * 70_000}


def tensor(digest: str) -> Tensor:
    content = CONTENTS[digest]
    return Tensor(digest, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path)
    folder.create()
    return folder


def stream(*digests: str, **other: bytes) -> bytes:
    return b"".join(
        encode(Answer(size=len(CONTENTS[digest]))) + other.get(digest, CONTENTS[digest]) for digest in digests
    )


def fetched(folder: JobFolder, answers: bytes) -> Fetcher:
    """Has a courier answer so, once it has heard what is wanted."""
    said = folder.root / "answers"
    said.write_bytes(answers)
    session = ProcessSession(["sh", "-c", f"head -n {len(CONTENTS)} >/dev/null; cat {said}"], os.environ)
    channel = PipedChannel(session, "there", "ssh", 60.0, 1.0, lambda wait_s: None)
    fetcher = Fetcher(folder, [tensor(digest) for digest in CONTENTS])
    with CourierClient(channel, SshSettings()) as courier:
        fetcher.fetch(courier)
    return fetcher


def test_tensors_appear_under_their_names(folder: JobFolder) -> None:
    (folder.blobs / "cc.relay.part").write_bytes(b"left by an earlier attempt")
    fetched(folder, stream(*CONTENTS))
    assert {path.name: path.read_bytes() for path in folder.blobs.iterdir()} == CONTENTS


LIES = {
    "other bytes": (stream("aa", aa=bytes(10_240)), "other bytes"),
    "another tensor": (stream("bb"), "other bytes"),
    "more bytes": (encode(Answer(size=10**15)), "announced with 10240"),
    "a refusal": (encode(Answer("no")), "no"),
    "a tensor twice": (stream("aa", "aa"), "other bytes"),
    "a line without an end": (b"x" * 5000, "ended with status 0"),
    "no message": (b'{"size":"3"}\n', "Expected"),
}


@pytest.mark.parametrize("lie", LIES)
def test_nothing_else_is_accepted_and_nothing_of_it_stays(folder: JobFolder, lie: str) -> None:
    data, reason = LIES[lie]
    with pytest.raises((Refused, WorkerError), match=reason):
        fetched(folder, data)
    assert [path.name for path in folder.blobs.iterdir()] == (["aa"] if lie == "a tensor twice" else [])


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"public_key":"ssh-ed25519 AAAA\\nssh-rsa BBBB"}\n', Offer),
        (b'{"digest":"../program.log","size":1,"sha256":"' + b"0" * 64 + b'"}\n', Tensor),
        (b'{"size":1}', Answer),
        (b'{"size":' + b"[" * 100_000 + b"\n", Answer),
    ],
)
def test_what_is_no_message_is_refused(line: bytes, kind: type) -> None:
    with pytest.raises(ProtocolError):
        decode(line, kind)
