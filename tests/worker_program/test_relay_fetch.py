"""What a worker accepts from another one: bytes of which the host told the SHA-256, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.relay import Answer, Fetch, Offer, Tensor, decode, encode
from digirl_dist.worker_program.relay_fetch import Fetcher, Refused

CONTENTS = {"aa": bytes(range(256)) * 40, "bb": b"", "cc": b"x" * 70_000}


def tensor(digest: str) -> Tensor:
    content = CONTENTS[digest]
    return Tensor(digest, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def fetcher(folder: JobFolder) -> Fetcher:
    wanted = [tensor(digest) for digest in CONTENTS]
    return Fetcher(folder, Fetch("10.0.0.2", 22, "ann", "SHA256:" + "a" * 43, "ed25519", "", wanted))


def stream(*digests: str, **other: bytes) -> bytes:
    return b"".join(
        encode(Answer(size=len(CONTENTS[digest]))) + other.get(digest, CONTENTS[digest]) for digest in digests
    )


@pytest.mark.parametrize("step", [1, 997, 1 << 20])
def test_tensors_come_in_any_pieces(folder: JobFolder, fetcher: Fetcher, step: int) -> None:
    data = stream(*CONTENTS)
    assert fetcher.requests().count(b"\n") == 3
    for start in range(0, len(data), step):
        fetcher.take_in(memoryview(data)[start : start + step])
    assert {path.name: path.read_bytes() for path in folder.blobs.iterdir()} == CONTENTS
    assert fetcher.is_done


LIES = {
    "other bytes": (stream("aa", aa=bytes(10_240)), "other bytes"),
    "another tensor": (stream("bb"), "which has 10240"),
    "more bytes": (encode(Answer(size=10**15)), "which has 10240"),
    "a refusal": (encode(Answer("no")), "no"),
    "a tensor twice": (stream("aa", "aa"), "which has 0"),
    "a line without an end": (b"x" * 5000, "protocol"),
    "no message": (b'{"size":"3"}\n', "Expected"),
}


@pytest.mark.parametrize("lie", LIES)
def test_nothing_else_is_accepted_and_nothing_of_it_stays(folder: JobFolder, fetcher: Fetcher, lie: str) -> None:
    data, reason = LIES[lie]
    fetcher.requests()
    with pytest.raises((Refused, ProtocolError), match=reason):
        fetcher.take_in(memoryview(data))
    fetcher.drop()
    honest = ["aa"] if lie == "a tensor twice" else []
    assert [path.name for path in folder.blobs.iterdir()] == honest and not fetcher.is_done


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
