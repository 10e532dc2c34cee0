"""``bsize: auto``: chosen by cores and memory, lowered where emulators do not boot, and told."""

from __future__ import annotations

import fcntl
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from user_classes import Coin, Counter

from digirl_dist.assembly.collector import RunContext, build_collector
from digirl_dist.capacity import Machine, Needs, PoolSize, choose, core_limits, memory_limits, pool_size
from digirl_dist.emulator.plugins import Device
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.roster import worker_configs
from digirl_dist.report.why import explain
from digirl_dist.settings import InProcessSettings, LimitSettings, Parallel, Settings
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan, Task, Ticket


@pytest.mark.parametrize(
    ("machine", "needs", "slots"),
    [
        (Machine(cores=8, memory_mib=64_000), Needs(400, 0.5), 16),  # cores decide
        (Machine(cores=64, memory_mib=8_000), Needs(1_000, 0.5), 6),  # memory decides
        (Machine(cores=1, memory_mib=500), Needs(4_000, 2), 1),  # too small for one: it is tried all the same
    ],
)
def test_the_scarcer_of_cores_and_memory_decides(machine: Machine, needs: Needs, slots: int) -> None:
    chosen = choose(machine, needs)
    assert chosen.slots == slots
    assert f"{machine.cores:g} cores" in chosen.reason and f"{machine.memory_mib:.0f} MiB" in chosen.reason


def test_a_machine_is_shared_out_in_equal_parts() -> None:
    whole, half = Machine.here(), Machine.here(sharers=2)
    assert half.cores == whole.cores / 2
    assert half.memory_mib == pytest.approx(whole.memory_mib / 2, rel=0.2)


def test_control_groups_limit_cores_and_memory(tmp_path: Path) -> None:
    limited, free = tmp_path / "limited", tmp_path / "free"
    for folder in (limited, free):
        folder.mkdir()
    (limited / "cpu.max").write_text("150000 100000\n")
    (limited / "memory.max").write_text("1000\n")
    (limited / "memory.current").write_text("700\n")
    (limited / "memory.stat").write_text("anon 300\ninactive_file 400\n")
    (free / "cpu.max").write_text("max 100000\n")
    (free / "memory.max").write_text("max\n")
    groups = [limited, free, tmp_path / "none"]
    assert list(core_limits(groups)) == [1.5]
    assert list(memory_limits(groups)) == [700]


def test_a_worker_may_choose_while_the_others_are_told() -> None:
    settings = Settings(worker_ips=["a", {"host": "b", "bsize": "auto"}], bsize=3)
    assert [member.slots for member in worker_configs(settings)] == [3, None]
    with pytest.raises(
        SettingsError, match=r"worker_ips\[0\]: bsize='many' must be a whole number from 1 to 4,096, or auto"
    ):
        worker_configs(Settings(worker_ips=[{"host": "b", "bsize": "many"}]))


class OnlyTwo(Counter):
    """Boots where one of two places in a folder is free."""

    def __init__(self, folder: str) -> None:
        super().__init__(step_s=0.02)
        for number in range(2):
            self._place = open(f"{folder}/place-{number}", "w")
            try:
                fcntl.flock(self._place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._place.close()
        raise MemoryError("no room for another device")


@pytest.mark.nightly
@pytest.mark.component
@pytest.mark.parametrize("kind", [Parallel.single, Parallel.host])
def test_slots_that_do_not_boot_are_given_up_and_the_episodes_come_home(tmp_path: Path, kind: Parallel) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    limits = LimitSettings(slot_failures=1, no_worker_s=60, orphan_s=6)
    settings = Settings(
        parallel=kind, dry_run=True, dry_run_workers=1, bsize="auto", limits=limits, trainer=InProcessSettings()
    )
    needs = Needs(memory_mib=10, cores=Machine.here().cores / 4.5)  # four by the cores
    device = Device(partial(OnlyTwo, str(tmp_path)), OnlyTwo.spec, [], None, needs=needs)
    with ExitStack() as stack:
        folder = RunFolder(tmp_path / "run", "")
        stack.callback(folder.close)
        events = Events(folder.events, (lambda what, content: heard.append((what, content)),))
        stack.callback(events.close)
        policy = Coin(Counter.spec)
        checkpoint = Checkpoints(folder.checkpoints).save(0, policy.state_dict(), {}, {})
        store, status = Store(folder.trajectories), Status(folder.root / "status.json")
        context = RunContext(
            settings,
            device,
            partial(Coin, Counter.spec),
            Plan([Task("count")], 6, seed=0),
            folder,
            store,
            events,
            status,
        )
        collector = build_collector(context, stack)
        tickets = [Ticket(0, index, Task("count"), index, 0) for index in range(150)]
        result = collector.collect(checkpoint, tickets)
    assert len(result.trajectories) == 150 and {each.slot for each in result.trajectories} <= {0, 1, 2, 3}
    chosen = [content for what, content in heard if what == "bsize"]
    assert [one["slots"] for one in chosen] == [4] and "cores carry 4" in chosen[0]["reason"]
    given_up = [
        content["reason"] for what, content in heard if what == "slot" and "goes on without" in content["reason"]
    ]
    assert len(given_up) == 2 and given_up[-1].endswith("with 2") and "no room for another device" in given_up[0]
    assert "bsize: auto chose 4: " in explain(tmp_path / "run")
    lines = [json.loads(line) for line in folder.events.read_text().splitlines()]
    assert sum(line["event"] == "bsize" for line in lines) == 1


def test_the_same_checks_a_machine_refuses_more_emulators_than_its_memory_carries_and_says_how_many_fit() -> None:
    """Only doctor did: a run started 1,000 emulators of 410 GB on a machine of 16."""
    machine, needs = Machine(cores=8, memory_mib=16_384), Needs(400, 0.5)
    assert pool_size(39, machine, needs) == PoolSize(39, "") and pool_size(None, machine, needs).slots == 16
    with pytest.raises(SettingsError, match=r"bsize=1000 .* 391\.3 GB .* 16\.0 GB are free -> set bsize=39 or"):
        pool_size(1000, machine, needs)
    assert pool_size(1, Machine(cores=1, memory_mib=100), needs) == PoolSize(1, ""), "one is tried anywhere"
