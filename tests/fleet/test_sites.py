"""Who fetches from whom: tensors come to a site once, and whatever fails ends at the host."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.relay import Relays
from digirl_dist.fleet.sites import FetchLimits, Site
from digirl_dist.storage.digest import digest

POLICY = frozenset("abc")
NOW = 1000.0


def site_of(*workers: str) -> Site:
    site = Site(quarantine_s=60.0)
    for worker in workers:
        site.join(worker)
    return site


def need(site: Site, worker: str, now: float = NOW) -> str | None:
    site.begin(worker, POLICY)
    return site.source(worker, POLICY, now)


def test_the_first_worker_gets_the_policy_from_the_host_and_the_others_from_each_other() -> None:
    names = [f"w{number:02}" for number in range(16)]
    site = site_of(*names)
    sources = {name: need(site, name) for name in names}
    assert [name for name, source in sources.items() if source is None] == ["w00"]
    assert max(list(sources.values()).count(name) for name in names) == 4
    for name in names:
        passed, at = 0, sources[name]
        while at is not None:
            passed, at = passed + 1, sources[at]
        assert passed <= 2  # 1 + 4 + 16


def test_a_worker_that_has_the_policy_serves_one_that_comes_later() -> None:
    site = site_of("w1", "w2")
    need(site, "w1")
    site.end("w1")
    assert need(site, "w2") == "w1" and site.gets_more("w1") is False


def test_a_worker_with_another_policy_is_no_source() -> None:
    site = site_of("w1", "w2")
    site.begin("w1", frozenset("ab"))
    assert site.source("w1", frozenset("ab"), NOW) is None
    assert need(site, "w2") is None


def test_nobody_fetches_from_a_worker_of_which_it_is_not_known_yet_where_it_gets_the_policy_from() -> None:
    site = site_of("w1", "w2")
    site.begin("w1", POLICY)
    assert need(site, "w2") is None
    assert site.source("w1", POLICY, NOW) == "w2"


def test_when_the_first_worker_is_lost_one_of_the_others_takes_its_place() -> None:
    site = site_of("w1", "w2", "w3", "w4")
    assert [need(site, name) for name in ("w1", "w2", "w3", "w4")] == [None, "w1", "w1", "w1"]
    site.leave("w1")
    assert site.gets_more("w1") is None
    again = [site.source(name, POLICY, NOW) for name in ("w3", "w2", "w4")]
    assert again == [None, "w3", "w3"]


def test_nobody_waits_for_a_worker_that_waits_for_it() -> None:
    site = site_of("w1", "w2", "w3")
    assert [need(site, name) for name in ("w1", "w2")] == [None, "w1"]
    assert site.source("w1", POLICY, NOW) is None


def test_a_worker_that_failed_to_fetch_asks_the_host_for_a_while() -> None:
    site = site_of("w1", "w2", "w3")
    need(site, "w1")
    assert need(site, "w2") == "w1"
    site.failed("w2", "w1", NOW)
    assert site.source("w2", POLICY, NOW + 59) is None
    assert need(site, "w3", NOW + 1) == "w1"
    assert need(site, "w2", NOW + 61) == "w1"


def test_a_source_with_which_two_workers_failed_is_not_tried_by_others() -> None:
    site = site_of("w1", "w2", "w3", "w4")
    need(site, "w1")
    for name in ("w2", "w3"):
        assert need(site, name) == "w1"
        site.failed(name, "w1", NOW)
        site.leave(name)
    assert need(site, "w4") is None


def test_a_worker_that_cannot_serve_is_tried_once_by_all_together() -> None:
    site = site_of("w1", "w2", "w3")
    need(site, "w1")
    assert need(site, "w2") == "w1"
    site.cannot_serve("w1", NOW)
    assert site.source("w2", POLICY, NOW) is None
    assert need(site, "w3") == "w2"


@pytest.mark.parametrize(
    ("size", "gets_more", "after_s", "gives_up"),
    [
        (0, True, 500.0, False),  # its source has nothing either
        (10_000, False, 14.0, False),
        (0, False, 16.0, True),  # nothing comes
        (20_000, False, 100.0, True),  # so little that the host is faster
        (99_000, False, 100.0, False),
        (200_000, True, 1.0, True),  # more than there is
    ],
)
def test_a_fetch_is_given_up_when_the_host_would_be_faster(
    size: int, gets_more: bool, after_s: float, gives_up: bool
) -> None:
    limits = FetchLimits(100_000, now=0.0)
    assert (limits.problem(size, gets_more, floor=1000.0, now=after_s) is not None) == gives_up


def test_a_worker_that_floods_the_host_with_its_progress_fetches_no_more() -> None:
    limits = FetchLimits(100_000, now=50.0)
    assert all(limits.problem(0, True, 1000.0, 50.0 + 0.2 * beat) is None for beat in range(1000))
    assert any(limits.problem(0, True, 1000.0, 250.0) for _ in range(2000))


def test_a_fetch_that_waited_for_its_source_has_its_time_from_then_on() -> None:
    limits = FetchLimits(100_000, now=0.0)
    assert limits.problem(5000, True, 1000.0, 300.0) is None
    assert limits.problem(6000, False, 1000.0, 314.0) is None
    assert limits.problem(6000, False, 1000.0, 330.0) is not None


def test_what_is_known_of_tensors_of_versions_that_went_is_forgotten() -> None:
    relays, asked = Relays(300.0), 0
    frozen = Blob(digest(b"frozen"), 6, lambda: memoryview(b"frozen"))
    for version in range(100):
        own = [b"%d %d" % (version, number) for number in range(9)]
        published = frozenset({frozen.digest, *map(digest, own)})
        for blob in (frozen, *map(Blob.of, own)):
            known = relays.tensor(replace(blob, published=published))
            assert known.sha256 == hashlib.sha256(blob.content()).hexdigest()
            asked = max(asked, len(relays._sha256))
    assert asked <= 2 * 10 + 1
