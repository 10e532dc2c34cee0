"""Pushing to a worker: continued after a cut, as deltas where that pays, and always verified."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from process_watch import eventually
from ssh_relay import relayed

from digirl_dist.errors import FileRefusedError, LinkLostError
from digirl_dist.fleet.outgoing import Blob, Outgoing, Weights
from digirl_dist.fleet.push import CourierFiles, LinkRate
from digirl_dist.fleet.roster import this_python
from digirl_dist.protocol.messages import Need
from digirl_dist.settings import PushDtype, SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.courier import CourierClient
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.digest import digest

pytestmark = pytest.mark.system

LIMITS = SshSettings(ping_s=0.5, silence_s=5.0)
SLOW, FAST = 2e6, 2e9
"""Bytes per second: far from where a delta begins to pay, which depends on the processor."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Address]:
    if os.environ.get("CI") != "true":
        pytest.importorskip("asyncssh")
    with LocalhostServer("w1", tmp_path / "server") as address:
        yield address


@contextmanager
def courier_at(address: Address, folder: Path) -> Iterator[CourierClient]:
    command = [*this_python(None), "-m", "digirl_dist.worker_program.courier", "--folder", str(folder)]
    with connect(address, LIMITS) as connection, CourierClient(connection.open(command), LIMITS) as courier:
        yield courier


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The worker's folder."""
    return tmp_path / "there"


@pytest.fixture
def courier(server: Address, there: Path) -> Iterator[CourierClient]:
    with courier_at(server, there) as courier:
        yield courier


def link(rate: float) -> LinkRate:
    measured = LinkRate()
    measured.add(int(10 * rate), 10.0)
    return measured


def two_versions(folder: Path) -> tuple[list[Blob], list[Blob]]:
    """All blobs of a policy in bfloat16, and those that a small step of it changed."""
    checkpoints = Checkpoints(folder, keep_every=10)
    state = {"large": torch.randn(1_000_000).bfloat16(), "small": torch.randn(10), "frozen": torch.randn(100_000)}
    first = Weights(checkpoints.save(0, state, {}, {}), PushDtype.float32)
    changed = torch.where(torch.rand(1_000_000) < 0.1, 1.01, 1.0) * state["large"].float()
    state = {**state, "large": changed.bfloat16(), "small": state["small"] + 1}
    second = Weights(checkpoints.save(1, state, {}, {}), PushDtype.float32, first)
    names = [{info.digest for info in weights.tensors.values()} for weights in (first, second)]
    return Outgoing(first, None).blobs(names[0]), Outgoing(second, first).blobs(names[1] - names[0])


class Push(CourierFiles):
    """What a worker that has what lies in ``there`` is brought."""

    def __init__(self, courier: CourierClient, there: Path, link: LinkRate | None = None) -> None:
        super().__init__(courier, link)
        self._there = there / "blobs"

    def __call__(self, blobs: list[Blob]) -> int:
        rests = {path.stem: path.stat().st_size for path in self._there.glob("*.part")}
        return self.push(Need("policy", [], rests, [path.name for path in self._there.glob("*")]), blobs)


def assert_arrived(there: Path, blobs: list[Blob]) -> None:
    for blob in blobs:
        assert (there / "blobs" / blob.digest).read_bytes() == bytes(blob.content())


def test_on_a_slow_link_a_changed_tensor_travels_as_its_difference(
    courier: CourierClient, there: Path, tmp_path: Path
) -> None:
    first, second = two_versions(tmp_path / "checkpoints")
    push = Push(courier, there, link(SLOW))
    push(first)
    assert push(second) < 0.5 * sum(blob.size for blob in second)
    assert_arrived(there, second)


def test_on_a_fast_link_tensors_travel_whole(courier: CourierClient, there: Path, tmp_path: Path) -> None:
    first, second = two_versions(tmp_path / "checkpoints")
    push = Push(courier, there, link(FAST))
    assert push(first) == sum(blob.size for blob in first)
    assert push(second) == sum(blob.size for blob in second)
    assert_arrived(there, second)


def test_a_link_that_was_never_measured_gets_whole_tensors_first(
    courier: CourierClient, there: Path, tmp_path: Path
) -> None:
    first, second = two_versions(tmp_path / "checkpoints")
    Push(courier, there, link(SLOW))(first)
    assert Push(courier, there, LinkRate())(second) == sum(blob.size for blob in second)


def test_a_worker_without_the_version_before_gets_whole_tensors(
    courier: CourierClient, there: Path, tmp_path: Path
) -> None:
    _, second = two_versions(tmp_path / "checkpoints")
    assert Push(courier, there, link(SLOW))(second) == sum(blob.size for blob in second)
    assert_arrived(there, second)


def test_an_altered_version_before_costs_a_second_try_and_no_more(
    courier: CourierClient, there: Path, tmp_path: Path
) -> None:
    first, second = two_versions(tmp_path / "checkpoints")
    push = Push(courier, there, link(SLOW))
    push(first)
    [delta] = [blob.delta for blob in second if blob.delta is not None and blob.size > 1_000_000]
    base = there / "blobs" / delta.base
    base.write_bytes(bytes(base.stat().st_size))
    push(second)
    lacking = [blob for blob in second if not (there / "blobs" / blob.digest).exists()]
    assert [blob.delta for blob in lacking] == [delta]
    assert push(lacking) == lacking[0].size
    assert_arrived(there, second)


def test_a_push_that_was_cut_goes_on_where_it_stopped(server: Address, there: Path, tmp_path: Path) -> None:
    blob = Blob.of(os.urandom(30_000_000))
    part = there / "blobs" / f"{blob.digest}.part"
    with relayed(server, tmp_path) as (relay, address), courier_at(address, there) as courier:
        relay.rate = 20e6

        def cut() -> None:
            eventually(lambda: part.exists() and part.stat().st_size > 8_000_000)
            relay.cut()

        threading.Thread(target=cut, daemon=True).start()
        with pytest.raises(LinkLostError):
            Push(courier, there)([blob])
    with courier_at(server, there) as courier:
        assert 0 < Push(courier, there)([blob]) < 23_000_000
    assert_arrived(there, [blob])
    assert not part.exists()


@pytest.mark.parametrize("left", [b"rubbish" * 300_000, b"?" * 4_000_000], ids=["of the wrong content", "too long"])
def test_a_rest_that_is_no_beginning_of_the_file_does_no_harm(courier: CourierClient, there: Path, left: bytes) -> None:
    blob, other = Blob.of(os.urandom(3_000_000)), Blob.of(os.urandom(2_000_000))
    (there / "blobs").mkdir(parents=True)
    (there / "blobs" / f"{blob.digest}.part").write_bytes(left)
    push = Push(courier, there)
    for _ in range(2):  # the worker asks again for what it still lacks
        push([one for one in (other, blob) if not (there / "blobs" / one.digest).exists()])
    assert_arrived(there, [blob, other])


def test_what_is_refused_whole_is_an_error(courier: CourierClient, there: Path) -> None:
    wrong = Blob(digest(b"other"), 3, lambda: memoryview(b"one"))
    with pytest.raises(FileRefusedError, match="cannot write blobs/"):
        Push(courier, there)([wrong])


def test_the_link_is_measured_by_large_transfers_only(server: Address, there: Path, tmp_path: Path) -> None:
    measured = LinkRate()
    with relayed(server, tmp_path) as (relay, address), courier_at(address, there) as courier:
        relay.rate = 10e6
        Push(courier, there, measured)([Blob.of(b"small")])
        assert measured.rate() is None
        started = time.monotonic()
        Push(courier, there, measured)([Blob.of(os.urandom(12_000_000))])
        took = time.monotonic() - started
    rate = measured.rate()
    assert rate is not None and 0.9 * 12e6 / took < rate < 11e6
