"""Workers that pass tensors on to each other over a real sshd; here each worker is a folder of one machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from process_watch import eventually
from ssh.conftest import Server

from digirl_dist.child_process import SOURCE
from digirl_dist.errors import WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.push import CourierFiles
from digirl_dist.fleet.relay import Relays
from digirl_dist.fleet.spec import WorkerSpec
from digirl_dist.fleet.worker_events import Relayed, WorkerEvent
from digirl_dist.protocol.messages import Need
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.ssh.courier import CourierClient
from digirl_dist.storage.digest import digest

pytestmark = pytest.mark.component


class Worker:
    """One worker of the site, and how it gets tensors."""

    def __init__(
        self, folder: Path, python: list[str], connection: Connection, relays: Relays, at: tuple[str, int] | None
    ) -> None:
        self.folder, self.connection = folder, connection
        (folder / "blobs").mkdir(parents=True)
        spec = WorkerSpec(connection.address, 1, str(folder), lambda _: python, site="here", site_address=at)
        relay = relays.join(spec, connection, python)
        assert relay is not None
        self.relay = relay
        courier = [*python, "-m", "digirl_dist.worker_program.courier", "--folder", str(folder)]
        self._files = CourierFiles(CourierClient(connection.open(courier), SshSettings()), relay=relay)
        self.events: list[WorkerEvent] = []

    def get(self, blobs: list[Blob]) -> int:
        """Returns the bytes that the host sent."""
        sent = self._files.push(Need("policy", []), blobs, self.events.append)
        assert all(self.blob(blob).read_bytes() == bytes(blob.content()) for blob in blobs)
        return sent

    def blob(self, blob: Blob) -> Path:
        return self.folder / "blobs" / blob.digest

    def relayed(self) -> Relayed:
        (event,) = self.events
        assert isinstance(event, Relayed)
        return event


class Site:
    """The workers of one test."""

    def __init__(self, server: Server, limits: SshSettings, folder: Path, stack: ExitStack) -> None:
        assert server.address.key is not None
        self.home = Path(server.address.key).parent
        self.relays = Relays(quarantine_s=300.0)
        self._server, self._limits, self._folder, self._stack = server, limits, folder, stack

    def worker(self, name: str, home: Path | None = None, at: tuple[str, int] | None = None) -> Worker:
        python = ["env", f"HOME={home or self.home}", f"PYTHONPATH={SOURCE}", sys.executable]
        connection = connect(replace(self._server.address, name=name), self._limits)
        self._stack.enter_context(connection)
        return Worker(self._folder / name, python, connection, self.relays, at)

    def keys(self) -> list[str]:
        """The lines of ours in authorized_keys."""
        with suppress(FileNotFoundError):
            return (self.home / ".ssh" / "authorized_keys").read_text().splitlines()
        return []


@pytest.fixture(params=["paramiko"])
def site(request: pytest.FixtureRequest, openssh: Server, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(openssh, SshSettings(transport=request.param), tmp_path, stack)
        yield site
    eventually(lambda: not site.keys(), what="the end of the key in authorized_keys")


@pytest.fixture
def policy() -> list[Blob]:
    contents = [os.urandom(1 << 20) for _ in range(3)]
    digests = frozenset(digest(content) for content in contents)
    return [replace(Blob.of(content), published=digests) for content in contents]


SIZE = 3 << 20


@pytest.mark.parametrize("site", ["paramiko", "openssh"], indirect=True)
def test_the_host_sends_a_policy_once_and_workers_pass_it_on(site: Site, policy: list[Blob]) -> None:
    first, second, third = (site.worker(name) for name in ("w1", "w2", "w3"))
    assert first.get(policy) == SIZE and not first.events and not site.keys()
    assert second.get(policy) == third.get(policy) == 0
    told = second.relayed()
    assert (told.worker, told.source, told.size, told.reason) == ("w2", "w1", SIZE, "")
    (line,) = site.keys()
    assert line.startswith("restrict,expiry-time=") and line.split()[-2] == "digirl-dist-relay"


def test_identity_by_place_workers_that_share_a_home_each_serve_their_own_folder(site: Site) -> None:
    """One key let in for all by one authorized_keys: sshd took the first line, so all were served the first folder."""
    contents = [[os.urandom(1 << 20) for _ in range(2)] for _ in range(2)]
    policies = [[replace(Blob.of(one), published=frozenset(map(digest, each))) for one in each] for each in contents]
    sources = [site.worker(name) for name in ("w1", "w2")]
    for source, blobs in zip(sources, policies, strict=True):
        source.get(blobs)
    for source, blobs in zip(sources, policies, strict=True):
        answer = _asked(source, blobs)
        assert all(bytes(blob.content()) in answer for blob in blobs), f"{source.relay.name} serves another folder"
    assert len(site.keys()) == 2


def _asked(source: Worker, blobs: list[Blob]) -> bytes:
    """What a bearer of the source's key gets."""
    wanted = b"".join(b'{"get": "blobs/%s", "offset": 0}\n' % blob.digest.encode() for blob in blobs)
    at = source.relay.offer()
    key = source.folder / "key"
    key.write_text(at.private_key)
    key.chmod(0o600)
    known = source.connection.address.known_hosts
    command = ["ssh", "-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}"]
    command += ["-p", str(at.port), f"{at.user}@{at.host}"]
    return subprocess.run(command, input=wanted, capture_output=True, timeout=60).stdout


def test_what_is_still_on_its_way_to_the_first_is_passed_on_as_it_comes(site: Site, policy: list[Blob]) -> None:
    first, second = site.worker("w1"), site.worker("w2")

    def late() -> memoryview:
        eventually(second.blob(policy[0]).exists, what="the first tensor at the second worker")
        return policy[2].content()

    pushing = threading.Thread(target=first.get, args=[[*policy[:2], replace(policy[2], content=late)]])
    pushing.start()
    eventually(first.blob(policy[0]).exists, what="the first tensor at the first worker")
    assert second.get(policy) == 0
    pushing.join()


def test_when_the_first_is_lost_the_host_sends_what_is_missing(site: Site, policy: list[Blob]) -> None:
    first, second = site.worker("w1"), site.worker("w2")

    def lost() -> memoryview:
        eventually(second.blob(policy[0]).exists, what="the first tensor at the second worker")
        time.sleep(0.5)  # until that is told, too; else the host sends it once more
        first.relay.leave()
        first.connection.close()
        return policy[2].content()

    def push() -> None:
        with pytest.raises(WorkerError):
            first.get([*policy[:2], replace(policy[2], content=lost)])

    pushing = threading.Thread(target=push)
    pushing.start()
    eventually(first.blob(policy[0]).exists, what="the first tensor at the first worker")
    sent = second.get(policy)
    assert "connection to the host is lost" in second.relayed().reason
    assert 0 < sent < SIZE
    pushing.join()


def test_other_bytes_than_the_host_told_are_refused_and_come_from_the_host(site: Site, policy: list[Blob]) -> None:
    first, second = site.worker("w1"), site.worker("w2")
    first.get(policy)
    first.blob(policy[1]).write_bytes(bytes(policy[1].size))
    assert second.get(policy) == SIZE - second.relayed().size > 0
    assert "other bytes" in second.relayed().reason and "worker w1" in second.relayed().reason
    assert [path for path in second.blob(policy[0]).parent.iterdir() if path.suffix] == []


def test_a_worker_whose_keys_cannot_be_changed_serves_nobody(site: Site, policy: list[Blob], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".ssh").write_text("no folder")
    first, second, third = site.worker("w1", tmp_path / "home"), site.worker("w2"), site.worker("w3")
    first.get(policy)
    assert second.get(policy) == SIZE
    assert "w1" in second.relayed().reason and str(tmp_path / "home" / ".ssh") in second.relayed().reason
    assert third.get(policy) == 0 and third.relayed().source == "w2"


def test_a_machine_with_another_host_key_is_not_asked(site: Site, policy: list[Blob], embedded: Server) -> None:
    assert embedded.address.port is not None
    first, second = site.worker("w1", at=("127.0.0.1", embedded.address.port)), site.worker("w2")
    first.get(policy)
    assert second.get(policy) == SIZE
    assert "another host key" in second.relayed().reason


def test_the_key_fetches_tensors_by_digest_and_does_nothing_else(
    site: Site, policy: list[Blob], tmp_path: Path, openssh: Server
) -> None:
    first, second = site.worker("w1"), site.worker("w2")
    first.get(policy)
    second.get(policy)
    (first.folder / "secret").write_text("secret")
    key = tmp_path / "key"
    key.write_text(first.relay.offer().private_key)
    key.chmod(0o600)
    address = openssh.address
    to = ["-p", str(address.port), f"{address.user}@{address.host}"]
    options = [
        "-F",
        "none",
        "-i",
        str(key),
        "-o",
        f"UserKnownHostsFile={address.known_hosts}",
        "-o",
        "IdentitiesOnly=yes",
    ]

    def ssh(*command: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ssh", *options, *command], input=input, capture_output=True, text=True, timeout=60)

    assert "uid=" not in ssh(*to, "id; cat", input="id\n").stdout
    content = digest(b"new")
    for request in (
        '{"get": "secret", "offset": 0}',
        '{"get": "blobs/../secret", "offset": 0}',
        f'{{"put": "blobs/{content}", "size": 3, "digest": "{content}"}}\nnew',
    ):
        answer = ssh(*to, input=f"{request}\n")
        assert answer.returncode != 0 and answer.stdout == ""
    assert not (first.folder / "blobs" / content).exists()
    forwarded = ssh("-W", f"127.0.0.1:{address.port}", *to)
    assert forwarded.returncode != 0 and "SSH-2.0" not in forwarded.stdout
    assert ssh("-s", *to, "sftp").stdout == ""
