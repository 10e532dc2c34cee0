"""While nothing is asked for, what workers say is read all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process_watch import eventually

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.errors import MisconductError, RunFolderError
from digirl_dist.fleet.worker_events import EventQueue, Leaving, Lost, Pulled, Said
from digirl_dist.protocol.messages import EpisodeManifest, EpisodeReady, Heartbeat, Working
from digirl_dist.report.why import explain
from digirl_dist.settings import LimitSettings
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key

LIAR = "liar"
MANIFEST = EpisodeManifest("r1", Key(0, 0), 0, 0, "e", 1, "ab", 0, 1.0, 0.0, {})
READY = Said(LIAR, EpisodeReady(MANIFEST))
LOST = Lost(LIAR, MisconductError(LIAR, "it floods the host", proven=True), 300.0)


class Quiet:
    """Stands for the fleet: events are put by hand, and workers do nothing."""

    def __init__(self) -> None:
        self.events = EventQueue()
        self.workers: dict[str, Any] = dict.fromkeys((LIAR, "honest"), self)
        self.spec = SimpleNamespace(name=LIAR)
        self.removed: list[str] = []
        self.refused: list[Exception] = []
        self.forgotten: list[str] = []
        self.next_event, self.wake = self.events.get, self.events.wake

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to close."""

    def remove(self, name: str) -> None:
        del self.workers[name]
        self.removed.append(name)

    def forget(self, episode_id: str) -> None:
        self.forgotten.append(episode_id)

    def refuse(self, error: Exception) -> None:
        self.refused.append(error)


class Site:
    """A collector that has nothing to do, on a real folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = Quiet()
        fleet: Any = self.fleet
        self.events = Events(folder / "events.jsonl")
        self.status = Status(folder / "status.json")
        self.status.write()  # a reader may come before the first turn
        store = Store(folder / "trajectories")
        self.collector = FleetCollector(fleet, LimitSettings(), DispatchRules(), store, self.events, self.status)
        self.collector.attend()

    def told(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.collector.close()
    site.events.close()


def test_a_worker_that_is_lost_while_the_host_learns_is_named_at_once(site: Site) -> None:
    site.fleet.events.put(LOST)
    eventually(lambda: bool(site.told("worker_out_of_service")), 10)  # told after `worker_lost`
    eventually(lambda: "floods the host" in explain(site.folder), 10, "that `why` names it")
    assert [site.told(kind)[0]["worker"] for kind in ("worker_lost", "worker_out_of_service")] == [LIAR, LIAR]


def test_heartbeats_are_taken_in_while_nobody_collects(site: Site) -> None:
    beat = Heartbeat("load the policy", 1.0, 0.0, [], [], 0, 1)
    site.fleet.events.put(Said("honest", beat))
    eventually(lambda: site.status.worker("honest").doing == "load the policy", 10)


def test_an_episode_that_nobody_asked_for_is_dropped_and_what_the_worker_says_after_it_is_heard(site: Site) -> None:
    site.fleet.events.put(READY)
    site.fleet.events.put(LOST)
    eventually(lambda: bool(site.told("worker_lost")), 10)
    assert site.fleet.forgotten == ["e"] and len(site.told("episode_dropped")) == 1


def test_a_worker_that_is_to_leave_leaves_while_nobody_collects(site: Site) -> None:
    site.fleet.events.put(Leaving("honest"))
    eventually(lambda: site.fleet.removed == ["honest"], 10)


def test_a_worker_that_is_to_leave_stays_until_its_episode_is_durable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, full = site.collector.store.flush, [RunFolderError("the disk is full")]

    def flushed() -> None:
        if full:
            raise full.pop()
        flush()

    monkeypatch.setattr(site.collector.store, "flush", flushed)
    episode: Any = SimpleNamespace(ticket=SimpleNamespace(key=MANIFEST.key))
    with site.fleet.events._changed:  # both are read in one turn
        site.fleet.events.put(Pulled("honest", MANIFEST, episode, site.folder / "came", 0.0))
        site.fleet.events.put(Leaving("honest"))
    eventually(lambda: site.fleet.forgotten == ["e"] and site.fleet.removed == ["honest"], 10)


def test_a_defect_costs_the_worker_whose_words_met_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(site.collector.table, "_joined", broken)
    site.fleet.events.put(Said(LIAR, Working(1, "", [])))
    eventually(lambda: bool(site.fleet.refused), 10)
    site.fleet.events.put(LOST)
    eventually(lambda: bool(site.told("worker_lost")), 10, "that it still reads")
