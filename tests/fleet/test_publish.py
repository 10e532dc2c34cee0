"""Publishing a checkpoint to a fleet of real workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from process_watch import eventually
from ssh_relay import relayed
from user_classes import Counter, HeavyCoin

from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.roster import this_python
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.fleet.ssh_connection import SshConnector
from digirl_dist.fleet.worker_events import Lost, PolicyLoaded, Pulled, Said, WorkerEvent
from digirl_dist.protocol.messages import EpisodeReady, SlotLimits
from digirl_dist.settings import LimitSettings, PushDtype, SshSettings
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.tasks import Task, Ticket
from digirl_dist.user_code.packing import pack

pytestmark = [pytest.mark.system, pytest.mark.long]
MEGABYTES = 24
SSH = SshSettings(ping_s=0.5, silence_s=6.0)
LIMITS = LimitSettings(silence_s=8.0, back_off_s=0.1, orphan_s=20.0, stop_s=5.0)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Address]]:
    """Starts a server of that name."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("asyncssh")
    servers: list[LocalhostServer] = []

    def start(name: str) -> Address:
        servers.append(LocalhostServer(name, tmp_path / f"server-{name}"))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


@contextmanager
def fleet(folder: Path, addresses: Sequence[Address], dtype: PushDtype = PushDtype.float32) -> Iterator[Fleet]:
    agent = pack(partial(HeavyCoin, Counter.spec, MEGABYTES))
    job = Job("r1", agent, pack(Counter), None, SlotLimits(), 1, LIMITS.orphan_s)
    specs = [WorkerSpec(address, 1, str(folder / f"jobs-{address.name}"), this_python) for address in addresses]
    fleet = Fleet([(spec, job) for spec in specs], SshConnector(SSH, LIMITS), LIMITS, dtype)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.close()


def save(folder: Path, iteration: int, seed: int) -> Checkpoint:
    policy = HeavyCoin(Counter.spec, MEGABYTES)
    with torch.no_grad():
        policy.logits += torch.tensor([0.1234567, iteration])
        policy.ballast.normal_(generator=torch.Generator().manual_seed(seed))
    return Checkpoints(folder / "checkpoints", keep_every=100).save(iteration, policy.state_dict(), {}, {})


def await_event(
    fleet: Fleet, found: Callable[[WorkerEvent], bool], limit_s: float = 40.0
) -> tuple[WorkerEvent, list[WorkerEvent]]:
    """The first event of that kind, and all that came before."""
    deadline, before = time.monotonic() + limit_s, []
    while time.monotonic() < deadline:
        event = fleet.next_event(0.5)
        if event is not None and found(event):
            return event, before
        if event is not None:
            before.append(event)
    raise AssertionError(f"it did not come within {limit_s:g} s; {before[-10:]}")


def loaded(fleet: Fleet, worker: str, version: int) -> tuple[PolicyLoaded, list[WorkerEvent]]:
    event, before = await_event(
        fleet, lambda one: isinstance(one, PolicyLoaded) and (one.worker, one.version) == (worker, version)
    )
    assert isinstance(event, PolicyLoaded)
    return event, before


@pytest.mark.nightly
def test_a_stalled_worker_delays_no_other_and_catches_up(serve: Callable[[str], Address], tmp_path: Path) -> None:
    quick = serve("quick")
    with relayed(serve("stuck"), tmp_path) as (relay, stuck), fleet(tmp_path, [quick, stuck]) as here:
        here.publish(save(tmp_path, 1, 1))
        for _ in range(2):
            await_event(here, lambda one: isinstance(one, PolicyLoaded) and one.version == 1)
        relay.stop_after(4_000_000)
        here.publish(save(tmp_path, 2, 2))
        _, before = loaded(here, "quick", 2)
        eventually(lambda: relay.stopped, 20, "the stall")
        third = save(tmp_path, 3, 3)
        started = time.monotonic()
        here.publish(third)
        assert time.monotonic() - started < 4.0, "the host waited for the stuck worker"
        _, later = loaded(here, "quick", 3)
        assert not any(
            isinstance(event, Lost | PolicyLoaded) and event.worker == "stuck" for event in [*before, *later]
        )
        await_event(here, lambda one: isinstance(one, Lost) and one.worker == "stuck")
        relay.go_on()
        loaded(here, "stuck", 3)


def test_nothing_that_is_unchanged_is_sent(serve: Callable[[str], Address], tmp_path: Path) -> None:
    with fleet(tmp_path, [serve("w1")]) as here:
        here.publish(save(tmp_path, 1, 1))
        assert loaded(here, "w1", 1)[0].push_bytes > MEGABYTES * 900_000
        second = save(tmp_path, 2, 1)
        here.publish(second)
        assert loaded(here, "w1", 2)[0].push_bytes == 8  # the two logits
        here.publish(replace(second, iteration=3))
        assert loaded(here, "w1", 3)[0].push_bytes == 0


@pytest.mark.nightly
def test_in_bfloat16_the_worker_acts_with_the_rounded_policy(serve: Callable[[str], Address], tmp_path: Path) -> None:
    with fleet(tmp_path, [serve("w1")], PushDtype.bfloat16) as here:
        here.publish(save(tmp_path, 1, 1))
        assert loaded(here, "w1", 1)[0].push_bytes < MEGABYTES * 510_000
        ticket = Ticket(1, 0, Task("count"), seed=0, policy_version=1)
        here.workers["w1"].lease([ticket])
        ended, _ = await_event(here, lambda one: isinstance(one, Said) and isinstance(one.message, EpisodeReady))
        here.workers["w1"].pull(ended.message.manifest, ticket, tmp_path / "episode")
        pulled, _ = await_event(here, lambda one: isinstance(one, Pulled))
    assert isinstance(pulled, Pulled)
    exact = torch.tensor([0.1234567, 1.0])
    acting = exact.bfloat16().float().log_softmax(-1)
    for step in pulled.trajectory.steps:
        assert np.isclose(step.log_prob, float(acting[step.action]), atol=1e-6)
        assert not np.isclose(step.log_prob, float(exact.log_softmax(-1)[step.action]), atol=1e-6)
