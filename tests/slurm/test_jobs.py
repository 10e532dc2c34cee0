"""What is decided of Slurm without Slurm: which workers there are, what its states mean, what is told of a queue."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from process_watch import eventually

from digirl_dist.assembly.collector import _slurm_nodes
from digirl_dist.collect.leases import Leases
from digirl_dist.collect.worker_table import WorkerTable
from digirl_dist.errors import ClusterError, CollectionError, LinkLostError, SettingsError, UnreachableError
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.roster import worker_configs
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.fleet.ssh_connection import SshConnector
from digirl_dist.fleet.worker_events import Added, Connecting
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.settings import LimitSettings, Settings, SlurmSettings, SshSettings
from digirl_dist.slurm import jobs as slurm_jobs
from digirl_dist.slurm.jobs import Jobs, SlurmAddress, parse, why_ended
from digirl_dist.slurm.nodes import Nodes, SrunConnection
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status


def addresses(*entries: Any, **settings: Any) -> list[SlurmAddress]:
    found = [each.address for each in worker_configs(Settings(worker_ips=list(entries), **settings))]
    return [each for each in found if isinstance(each, SlurmAddress)]


def test_a_number_of_nodes_stands_for_as_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = addresses("10.0.0.2", "slurm:2", {"host": "slurm:1", "name": "large", "bsize": 8}, bsize=3)
    assert [(each.name, each.node, each.cpus) for each in found] == [
        ("slurm-0", None, 3),
        ("slurm-1", None, 3),
        ("large-0", None, 8),
    ]
    assert addresses("slurm:1", bsize="auto")[0].cpus is None
    assert addresses("slurm:1", slurm=SlurmSettings(cpus=5))[0].cpus == 5
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert [(each.name, each.node) for each in addresses("slurm")] == [("slurm-0", 0), ("slurm-1", 1)]


@pytest.mark.parametrize(
    ("entry", "remedy"),
    [
        ("slurm:0", "from 1 to 1,024"),
        ("slurm:many", "from 1 to 1,024"),
        ("slurm:", "from 1 to 1,024"),
        ("slurm:5000", "from 1 to 1,024"),
        ("slurm", "sbatch or salloc"),
        ({"host": "slurm:2", "username": "ann"}, "leave it out"),
        ({"host": "slurm:2", "site": "here"}, "takes no site"),
    ],
)
def test_an_entry_that_names_no_nodes_is_refused(entry: Any, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    with pytest.raises(SettingsError, match=remedy):
        addresses(entry)


@pytest.mark.parametrize("option", ["constraint=x", "--", "--nodes=2", "--output=x", "--arr=0-3"])
def test_an_option_that_is_none_or_is_the_hosts_own_is_refused(option: str) -> None:
    with pytest.raises(SettingsError, match="slurm.options"):
        SlurmSettings(options=[option])


def test_a_job_has_ended_unless_it_may_run_again() -> None:
    lives = ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STOPPED"]
    ends = ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"]
    listing = "\n".join(f"{number}|{state}|None|n1" for number, state in enumerate([*lives, *ends]))
    found = parse(f"slurm_load: a word of another kind\n{listing}\n")
    assert [each.state for each in found.values() if each.has_ended] == ends
    assert [each.job for each in found.values() if each.is_running] == ["2"]
    assert "ended: TIMEOUT (TimeLimit); the end of its log: why" in why_ended(parse("7|TIMEOUT|TimeLimit|")["7"], "why")


def test_waiting_in_a_queue_is_told_every_half_minute_and_ends_no_run(tmp_path: Path) -> None:
    now, told = 0.0, []
    limits = LimitSettings(no_worker_s=100)
    events = Events(tmp_path / "events.jsonl", (lambda kind, content: told.append((kind, content.get("seconds"))),))
    fleet: Fleet[Any] = Fleet([], None, limits)  # type: ignore[arg-type]
    status = Status(tmp_path / "status.json")
    table = WorkerTable(fleet, Leases(3, lambda: now), limits, events, status, lambda: now)
    table.take_in(Added("slurm-0"))
    for _ in range(400):
        table.take_in(Connecting("slurm-0", "wait for Slurm job 7: pending, Priority", None))
        table.check_that_somebody_can(0, 1)
        now += 1.0
    queued = [seconds for kind, seconds in told if kind == "worker_queued"]
    assert queued == list(range(30, 400, 30))
    assert "pending, Priority" in status.workers["slurm-0"].doing
    table.take_in(Connecting("slurm-0", "start a step on its node", 40.0))
    now += limits.no_worker_s + 1
    with pytest.raises(CollectionError, match="start a step"):
        table.check_that_somebody_can(0, 1)
    events.close()


@pytest.mark.component
def test_a_node_that_this_host_cannot_watch_any_more_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an ``srun`` that runs the step here: what matters is what happens on this side."""
    (tmp_path / "srun").write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def refused(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with SrunConnection(SlurmAddress("w1", "slurm"), [], "", SshSettings(ping_s=0.1)) as connection:
        assert connection.open("echo here").readline(120.0) == b"here\n"
        monkeypatch.setattr(connection._life, "_take_in", refused)
        eventually(lambda: not connection.alive)
        with pytest.raises(LinkLostError, match="Too many open files"):
            connection.open("true")


@pytest.mark.component
def test_where_slurm_is_down_one_worker_waits_for_its_answer_and_none_once_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\nsleep 0.5\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    now, jobs = 0.0, Jobs(SlurmSettings(), "mine", tmp_path, 60.0, lambda: now)
    with ThreadPoolExecutor(8) as workers:
        failed = [workers.submit(jobs.look, str(number)).exception for number in range(8)]
        assert all("squeue" in str(why()) for why in failed)
        assert (tmp_path / "asked").read_text() == "asked\n"
        now = 10.0
        failed = [workers.submit(jobs.look, str(number)).exception for number in range(8)]
        eventually(lambda: (tmp_path / "asked").read_text() == "asked\nasked\n")
        jobs.close()
        assert all("has ended" in str(why()) or "squeue" in str(why()) for why in failed)
    with pytest.raises(ClusterError, match="the run has ended"):
        jobs.submit(SlurmAddress("w1", "slurm"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Slurm's commands: ``squeue`` prints the file ``listing``; what is asked for goes to ``asked``."""
    asked = f"echo $(basename $0) $(echo $* | grep -o '[0-9]*$') >>{tmp_path}/asked"
    commands = {
        "squeue": f"cat {tmp_path}/listing",
        "sbatch": f"{asked}; wc -l <{tmp_path}/asked",
        "scancel": f"{asked}; test ! -e {tmp_path}/down || {{ echo 'scancel: error: {tmp_path.name}' >&2; exit 1; }}",
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "listing").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def submitted(slurm: Path) -> list[str]:
    """What was asked of Slurm since the first call, which cancels what a killed host has left."""
    return (slurm / "asked").read_text().splitlines()[1:]


@pytest.mark.component
def test_one_empty_answer_of_squeue_ends_no_job_and_two_cancel_it_before_the_next(slurm: Path) -> None:
    now = [0.0]
    nodes = Nodes(Jobs(SlurmSettings(), "mine", slurm, 60.0, lambda: now[0]), SshSettings(), None)
    said: list[str] = []

    def progress(doing: str, limit_s: float | None) -> None:
        said.append(doing)
        now[0] += 10.0  # so that each look is one at Slurm
        if len(said) == 5:
            (slurm / "listing").write_text("2|PENDING|Priority|\n")
        if len(said) == 7:
            (slurm / "listing").write_text("")

    with pytest.raises(UnreachableError, match="Slurm job 2 is gone"):
        nodes.connect(SlurmAddress("w1", "slurm"), progress)
    assert said[1:] and all("pending" in each for each in said[1:]), said
    assert submitted(slurm) == ["sbatch", "scancel 2"]


@pytest.mark.component
def test_a_job_that_cannot_be_cancelled_gets_no_successor(slurm: Path) -> None:
    now = [0.0]
    nodes = Nodes(Jobs(SlurmSettings(), "mine", slurm, 60.0, lambda: now[0]), SshSettings(), None)
    for _ in range(2):
        with pytest.raises(UnreachableError, match=slurm.name):

            def progress(doing: str, limit_s: float | None) -> None:
                now[0] += 10.0
                (slurm / "down").touch()

            nodes.connect(SlurmAddress("w1", "slurm"), progress)
    assert "sbatch" not in submitted(slurm)[1:]


@pytest.mark.component
def test_the_job_of_a_worker_that_leaves_is_cancelled_while_it_waits(slurm: Path) -> None:
    (slurm / "listing").write_text("2|PENDING|Priority|\n")
    nodes = Nodes(Jobs(SlurmSettings(), "mine", slurm, 60.0), SshSettings(), None)
    fleet: Fleet[Any] = Fleet([], SshConnector(SshSettings(), LimitSettings(), nodes), LimitSettings(stop_s=1.0))
    spec = WorkerSpec(SlurmAddress("w1", "slurm"), 1, "jobs", lambda _: ["python3"])
    fleet.add(spec, Job("r1", b"agent", b"e", 10, SlotLimits(), 1, 60.0))
    eventually(lambda: (slurm / "asked").exists() and "sbatch" in submitted(slurm))
    fleet.remove("w1")
    eventually(lambda: "scancel 2" in submitted(slurm), what="the end of the job")
    fleet.close()


@pytest.mark.component
def test_a_command_of_slurm_that_hangs_ends_with_all_that_it_started(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "squeue").write_text(f"#!/bin/sh\nsleep 600 & echo $! >{slurm}/child; wait\n")
    monkeypatch.setattr(slurm_jobs, "_LIMIT_S", 1.0)
    with pytest.raises(ClusterError, match=r"`squeue` did not answer within 1 s.*scontrol ping"):
        Jobs(SlurmSettings(), "mine", slurm, 60.0).look("7")
    child = int((slurm / "child").read_text())
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")


def test_a_job_waits_for_longer_than_the_host_is_silent_between_two_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts: list[str] = []
    monkeypatch.setattr(slurm_jobs, "ask", lambda _, script: scripts.append(script) or ("", ""))
    settings = Settings(ssh=SshSettings(ping_s=300.0, silence_s=700.0))
    context: Any = SimpleNamespace(settings=settings, folder=SimpleNamespace(run_id="r1", root=tmp_path))
    with ExitStack() as stack:
        nodes = _slurm_nodes(context, stack)
        nodes._jobs.would_start(SlurmAddress("w1", "slurm"))
    assert "no word of the host for 700 s" in scripts[0]


def test_the_log_of_a_job_may_lie_in_a_folder_with_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(slurm_jobs, "ask", lambda command, _: asked.extend(command) or ("", ""))
    Jobs(SlurmSettings(), "mine", Path("/100%x"), 60.0).would_start(SlurmAddress("w1", "slurm"))
    assert "--output=/100%%x/%j.log" in asked  # sbatch(1): %% is the character %
