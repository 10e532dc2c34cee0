"""Pushing blobs to one worker: continued after a cut, and as deltas where the link is slower than the codec."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from digirl_dist.errors import FileRefusedError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.relay import Relay, Tell
from digirl_dist.fleet.sites import MEASURABLE, LinkRate
from digirl_dist.protocol.job_folder import blob_name
from digirl_dist.ssh.courier import CourierClient, Put

_SMALLEST_DELTA = 1 << 16
_SMALLEST_REST = 1 << 20


class Push:
    """Pushes over one courier and remembers how fast its link is; ``relay`` spares it what other workers have."""

    def __init__(self, courier: CourierClient, link: LinkRate | None = None, relay: Relay | None = None) -> None:
        self._courier = courier
        self._link = relay.link if relay else link or LinkRate()
        self._relay = relay
        self._plainly = False

    def __call__(self, blobs: Sequence[Blob], tell: Tell = lambda event: None) -> int:
        """Brings the blobs to the worker; returns the bytes that the host sent. ``tell`` learns of relays.

        What the worker cannot continue or decode is left out: it will ask for it again, and get it whole. Raises
        FileRefusedError when it does not take whole ones either.
        """
        with self._relay.giving(blobs) if self._relay else nullcontext():
            return self._bring(blobs, tell)

    def _bring(self, blobs: Sequence[Blob], tell: Tell) -> int:
        plainly, self._plainly = self._plainly, False
        if plainly:
            return self._courier.put_many(Put(blob_name(blob.digest), blob.rest(), blob.digest) for blob in blobs)
        there = self._ask_for([*_rests(blobs), *_bases(blobs)])
        plain, deltas = self._split(self._not_relayed(blobs, there, tell), there)
        try:
            sent = self._measured(_plain(blob, there) for blob in plain)
            return sent + self._courier.put_many(self._shorter(blob) for blob in deltas)
        except FileRefusedError:
            if not there:
                raise
            self._plainly = True
            return 0

    def _not_relayed(self, blobs: Sequence[Blob], there: dict[str, int], tell: Tell) -> Sequence[Blob]:
        """Has the worker fetch what others of its site have; returns what is left for the host."""
        if self._relay is None:
            return blobs
        whole = [blob for blob in blobs if _base(blob) not in there or self._relay.prefers(blob)]
        came = self._relay.fetch(whole, tell)
        return [blob for blob in blobs if blob.digest not in came]

    def _ask_for(self, names: list[str]) -> dict[str, int]:
        return self._courier.sizes(names) if names else {}

    def _split(self, blobs: Sequence[Blob], there: dict[str, int]) -> tuple[list[Blob], list[Blob]]:
        """Returns blobs to send whole, enough to measure an unknown link, and those that may go as deltas."""
        plain: list[Blob] = []
        deltas: list[Blob] = []
        for blob in blobs:
            (deltas if _base(blob) in there and _rest(blob) not in there else plain).append(blob)
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
                return Put(blob_name(blob.digest), content, blob.digest, base=_base(blob), width=blob.delta.width)
        return _plain(blob, {})


def _plain(blob: Blob, there: dict[str, int]) -> Put:
    """Returns the blob whole, or what is missing of it on the worker."""
    left = there.get(_rest(blob), 0)
    offset = left if left <= blob.size else 0
    return Put(blob_name(blob.digest), blob.rest(offset), blob.digest, offset)


def _rest(blob: Blob) -> str:
    """Returns the file in which an interrupted transfer leaves what it had."""
    return blob_name(blob.digest) + ".part"


def _base(blob: Blob) -> str:
    return "" if blob.delta is None else blob_name(blob.delta.base)


def _rests(blobs: Sequence[Blob]) -> list[str]:
    return [_rest(blob) for blob in blobs if blob.size >= _SMALLEST_REST]


def _bases(blobs: Sequence[Blob]) -> list[str]:
    return [_base(blob) for blob in blobs if blob.delta is not None and blob.size >= _SMALLEST_DELTA]
