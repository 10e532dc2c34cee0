"""Files of one worker by its courier. Pushes are continued after a cut, and go as deltas where that is quicker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from pathlib import Path

from digirl_dist.errors import DigirlDistError, FileRefusedError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.relay import Relay, Tell
from digirl_dist.fleet.sites import MEASURABLE, LinkRate
from digirl_dist.protocol.job_folder import blob_name, episode_name
from digirl_dist.protocol.messages import EpisodeManifest, Need
from digirl_dist.ssh.courier import CourierClient, Get, Put

_SMALLEST_DELTA = 1 << 16


class CourierFiles:
    """``Files`` over one courier. Remembers how fast its link is; ``relay`` spares it what other workers have."""

    def __init__(self, courier: CourierClient, link: LinkRate | None = None, relay: Relay | None = None) -> None:
        self._courier = courier
        self._link = relay.site.link if relay else link or LinkRate()
        self._relay = relay
        self._plainly = False

    def push(self, need: Need, blobs: Sequence[Blob], tell: Tell = lambda event: None) -> int:
        """Brings the blobs to the worker; returns the bytes that the host sent. ``tell`` learns of relays.

        What the worker cannot continue or decode is left out: it will ask for it again, and get it whole. Raises
        FileRefusedError when it does not take whole ones either.
        """
        with self._relay.giving(blobs) if self._relay else nullcontext():
            return self._bring(need, blobs, tell)

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        items = [Get(episode_name(one.episode_id), path, one.digest, one.size) for path, one in episodes.items()]
        return ((item.local, problem) for item, problem in self._courier.get_many(items))

    def _bring(self, need: Need, blobs: Sequence[Blob], tell: Tell) -> int:
        plainly, self._plainly = self._plainly, False
        bases, rests = (set[str](), {}) if plainly else (set(need.bases), need.rests)
        plain, deltas = self._split(blobs if plainly else self._not_relayed(blobs, bases, tell), bases, rests)
        try:
            sent = self._measured(_plain(blob, rests) for blob in plain)
            return sent + self._courier.put_many(self._shorter(blob) for blob in deltas)
        except FileRefusedError:
            if not bases and not rests:
                raise
            self._plainly = True
            return 0

    def _not_relayed(self, blobs: Sequence[Blob], bases: Set[str], tell: Tell) -> Sequence[Blob]:
        """Has the worker fetch what others of its site have; returns what is left for the host."""
        if self._relay is None:
            return blobs
        whole = [blob for blob in blobs if not _has_base(blob, bases) or self._relay.prefers(blob)]
        came = self._relay.fetch(whole, tell)
        return [blob for blob in blobs if blob.digest not in came]

    def _split(self, blobs: Sequence[Blob], bases: Set[str], rests: Mapping[str, int]) -> tuple[list[Blob], list[Blob]]:
        """Returns blobs to send whole, enough to measure an unknown link, and those that may go as deltas."""
        plain: list[Blob] = []
        deltas: list[Blob] = []
        for blob in blobs:
            (deltas if _has_base(blob, bases) and blob.digest not in rests else plain).append(blob)
        if self._link.rate() is None:
            while deltas and sum(blob.size for blob in plain) < MEASURABLE:
                plain.append(deltas.pop())
        return plain, deltas

    def _measured(self, puts: Iterable[Put]) -> int:
        """Sends blobs and measures the link, without the time that it took to produce them."""
        produced_s = 0.0

        def timed() -> Iterator[Put]:
            nonlocal produced_s
            source = iter(puts)
            while True:
                started = time.monotonic()
                put = next(source, None)
                produced_s += time.monotonic() - started
                if put is None:
                    return
                yield put

        started = time.monotonic()
        sent = self._courier.put_many(timed())
        self._link.add(sent, time.monotonic() - started - produced_s)
        return sent

    def _shorter(self, blob: Blob) -> Put:
        """Returns the blob as a delta if that pays, else whole."""
        rate = self._link.rate()
        if blob.delta is not None and rate is not None and blob.delta.sample().pays(rate):
            content = blob.delta.content()
            if len(content) < blob.size:
                return Put(
                    blob_name(blob.digest),
                    content,
                    blob.digest,
                    base=blob_name(blob.delta.base),
                    width=blob.delta.width,
                )
        return _plain(blob, {})


def _has_base(blob: Blob, bases: Set[str]) -> bool:
    """Returns whether the blob may go as a delta against one of these."""
    return blob.delta is not None and blob.size >= _SMALLEST_DELTA and blob.delta.base in bases


def _plain(blob: Blob, rests: Mapping[str, int]) -> Put:
    """Returns the blob whole, or what is missing of it on the worker."""
    left = rests.get(blob.digest, 0)
    offset = left if left <= blob.size else 0
    return Put(blob_name(blob.digest), blob.rest(offset), blob.digest, offset)
