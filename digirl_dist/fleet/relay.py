"""Relays: a worker fetches tensors from another one of its site, and the host brings what cannot be had so.

The host decides who fetches from whom (``Site``), and tells the SHA-256 of each tensor. Workers pass bytes on over SSH,
with a key pair of the worker that passes on, which lets its bearer fetch tensors by digest there and nothing else.
Where workers share a home folder, and with it authorized_keys, the key tells whose folder is meant.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from digirl_dist.errors import ProtocolError, WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.sites import FetchLimits, Site
from digirl_dist.fleet.spec import WorkerSpec
from digirl_dist.fleet.worker_events import Relayed, WorkerEvent
from digirl_dist.protocol.messages import MOST_BYTES
from digirl_dist.protocol.relay import Fetch, Fetched, HostKeyKind, Offer, Offered, Tensor, decode, encode
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connection import Connection
from digirl_dist.types import T

_SMALLEST = 1 << 20
"""Fewer bytes are sooner sent than a login is made."""
_ANSWER_S = 30.0
_SLOWEST = 16 << 10
_FINGERPRINT = re.compile(r"(SHA256:[A-Za-z0-9+/]{43}) \((\S*)\)")
_KINDS: tuple[HostKeyKind, ...] = ("ed25519", "ecdsa", "rsa")

Tell = Callable[[WorkerEvent], None]


class _NoOffer(WorkerError):
    """The other worker lets nobody fetch from it."""


class _SourceLeft(WorkerError):
    """The other worker is not connected any more."""


@dataclass(frozen=True)
class KeyPair:
    """A key pair in the form of OpenSSH. The private half is never on the host's disk."""

    public: str
    private: str

    @classmethod
    def new(cls) -> KeyPair:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        return cls(public.decode(), private.decode())


class Relays:
    """The sites of one run. Any thread may use it."""

    def __init__(self, quarantine_s: float) -> None:
        """``quarantine_s``: how long a worker with which a relay failed is left out of relays."""
        self._quarantine_s = quarantine_s
        self._sites: dict[str, Site] = {}
        self._attached: dict[str, Relay] = {}
        self._sha256: dict[str, str] = {}
        self._lock = threading.Lock()
        self._hashing = threading.Lock()

    def join(self, spec: WorkerSpec, connection: Connection, python: Sequence[str]) -> Relay | None:
        """Returns the worker's part, to be left with the connection; None if it has no site."""
        if spec.site is None:
            return None
        with self._lock:
            site = self._sites.setdefault(spec.site, Site(self._quarantine_s))
            relay = self._attached[spec.name] = Relay(self, site, spec, connection, python)
            site.join(spec.name)
        return relay

    def leave(self, relay: Relay) -> None:
        """Forgets a worker, unless it has come back already."""
        with self._lock:
            if self._attached.get(relay.name) is relay:
                del self._attached[relay.name]
                relay.site.leave(relay.name)

    def source(self, worker: str) -> Fetch:
        """Returns how to fetch from a worker, which lets its key in: a Fetch of nothing. Raises WorkerError."""
        relay = self._attached.get(worker)
        if relay is None:
            raise _SourceLeft(worker, "its connection to the host is lost")
        try:
            return relay.offer()
        except WorkerError as error:
            raise _NoOffer(worker, error.reason, error.remedy) from error

    def tensor(self, blob: Blob) -> Tensor:
        """Returns how workers are told of a tensor."""
        with self._hashing:
            if blob.digest not in self._sha256:
                if len(self._sha256) > 2 * len(blob.published):  # those of versions that went
                    self._sha256 = {known: sha for known, sha in self._sha256.items() if known in blob.published}
                self._sha256[blob.digest] = hashlib.sha256(blob.content()).hexdigest()
            return Tensor(blob.digest, blob.size, self._sha256[blob.digest])


class Relay:
    """One worker's part in the relays of its site, for the life of a connection."""

    def __init__(
        self, relays: Relays, site: Site, spec: WorkerSpec, connection: Connection, python: Sequence[str]
    ) -> None:
        self.name = spec.name
        self.site = site
        self._relays = relays
        self._spec = spec
        self._connection = connection
        self._python = python
        self._key = KeyPair.new()
        self._offering: Channel | None = None
        self._refused: tuple[WorkerError, float] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def giving(self, blobs: Sequence[Blob]) -> Iterator[None]:
        """While its body lasts, the worker is being given the policy to which the blobs belong."""
        self.site.begin(self.name, blobs[0].published if blobs else frozenset())
        try:
            yield
        finally:
            self.site.end(self.name)

    def prefers(self, blob: Blob) -> bool:
        """Returns whether a tensor should be relayed whole: a delta would come from the host for each worker."""
        return blob.delta is None or blob.delta.sample().ratio * len(self.site) > 1

    def fetch(self, blobs: Sequence[Blob], tell: Tell) -> set[str]:
        """Fetches tensors from other workers as far as that works; returns the digests of those that came.

        Raises LinkLostError if the worker's own connection breaks.
        """
        wanted, came = {blob.digest: blob for blob in blobs if blob.published}, set[str]()
        while sum(blob.size for blob in wanted.values()) >= _SMALLEST:
            source = self.site.source(self.name, wanted.keys(), time.monotonic())
            if source is None:
                break
            new, started = set[str](), time.monotonic()
            reason = self._problem(source, wanted, new)
            size = sum(wanted[digest].size for digest in new)
            tell(Relayed(self.name, source, size, time.monotonic() - started, reason))
            came |= new
            wanted = {digest: blob for digest, blob in wanted.items() if digest not in new}
        return came

    def leave(self) -> None:
        """The connection ends, and with it what the worker offers."""
        self._relays.leave(self)

    def offer(self) -> Fetch:
        """Lets this worker's key in, if it is not in yet; returns a Fetch of nothing from it. Raises WorkerError."""
        found = _FINGERPRINT.fullmatch(self._connection.fingerprint)
        kind = next((kind for kind in _KINDS if found and kind in found[2]), None)
        if found is None or kind is None:
            raise WorkerError(self.name, f"its host key is not known for certain: {self._connection.fingerprint}")
        with self._lock:
            if self._offering is None or self._offering.exit_status is not None:
                if self._offering is not None:
                    self._offering.close()
                self._offering = self._let_in()
        host, port = self._spec.site_address or (self._connection.host, self._connection.port)
        return Fetch(host, port, self._connection.user, found[1], kind, self._key.private, [])

    def _problem(self, source: str, wanted: Mapping[str, Blob], came: set[str]) -> str:
        """Fetches tensors, whose digests it adds to ``came``; returns why not all of them came."""
        try:
            self._fetch_from(source, wanted, came)
        except (WorkerError, ProtocolError) as error:
            if not self._connection.alive:
                raise
            if isinstance(error, _NoOffer):
                self.site.cannot_serve(source, time.monotonic())
            elif not isinstance(error, _SourceLeft):
                self.site.failed(self.name, source, time.monotonic())
            return str(error)
        return ""

    def _fetch_from(self, source: str, wanted: Mapping[str, Blob], came: set[str]) -> None:
        of_nothing = self._relays.source(source)
        request = msgspec.structs.replace(of_nothing, tensors=[self._relays.tensor(blob) for blob in wanted.values()])
        channel = self._open("digirl_dist.worker_program.relay_fetch")
        try:
            channel.write(encode(request))
            self._follow(channel, source, wanted, came)
        finally:
            channel.close_input()
            channel.close()

    def _follow(self, channel: Channel, source: str, wanted: Mapping[str, Blob], came: set[str]) -> None:
        limits = FetchLimits(sum(blob.size for blob in wanted.values()), time.monotonic())
        while len(came) < len(wanted):
            said = self._next(channel, Fetched)
            came |= wanted.keys() & set(said.digests)
            gets_more = self.site.gets_more(source)
            floor = (self.site.link.rate() or _SLOWEST) / max(1, len(self.site))
            problem = said.error or limits.problem(said.size, bool(gets_more), floor, time.monotonic())
            if len(came) == len(wanted):
                return
            if gets_more is None:
                raise _SourceLeft(source, "its connection to the host is lost")
            if problem:
                raise WorkerError(self.name, f"it cannot fetch from worker {source}: {problem}")

    def _let_in(self) -> Channel:
        """Asks the worker, unless it has refused a moment ago: others wait for the answer."""
        if self._refused is not None and time.monotonic() - self._refused[1] < _ANSWER_S:
            raise self._refused[0]
        channel = self._open("digirl_dist.worker_program.relay_source")
        try:
            channel.write(encode(Offer(self._key.public)))
            answer = self._next(channel, Offered)
            if answer.error:
                raise WorkerError(self.name, answer.error, "let its user write that file, or take its `site` away")
        except (WorkerError, ProtocolError) as error:
            channel.close()
            refusal = error if isinstance(error, WorkerError) else WorkerError(self.name, str(error))
            self._refused = refusal, time.monotonic()
            raise refusal from error
        return channel

    def _next(self, channel: Channel, kind: type[T]) -> T:
        line = channel.readline(_ANSWER_S, MOST_BYTES)
        if not line:
            raise channel.ended()
        return decode(line, kind)

    def _open(self, module: str) -> Channel:
        return self._connection.open([*self._python, "-m", module, "--folder", self._spec.folder])
