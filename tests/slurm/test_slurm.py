"""Workers on nodes that Slurm gives: a real slurmctld, and two real slurmd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_watch import eventually, nothing_is_left_of
from slurm_cluster import PROGRAMS, asked, slurm_cluster

from digirl_dist.assembly.collectors.ssh import slurm_says
from digirl_dist.child_process import environment
from digirl_dist.errors import ClusterError, LinkLostError, UnreachableError
from digirl_dist.settings import Settings, SlurmSettings, SshSettings
from digirl_dist.slurm.jobs import Jobs, SlurmAddress, sign_of_life
from digirl_dist.slurm.nodes import Nodes, SrunConnection
from digirl_dist.storage import json_lines, parquet

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("slurm"), pytest.mark.long_file(70)]
SSH = SshSettings(ping_s=0.5, silence_s=10.0)
_SLOW_S = 120.0


@pytest.fixture(scope="module")
def conf() -> Iterator[Path]:
    if missing := [each for each in PROGRAMS if shutil.which(each, path=f"/usr/sbin:{os.environ['PATH']}") is None]:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"{missing[0]} is missing: apt-get install munge slurmctld slurmd slurm-client")
    with slurm_cluster() as conf:
        yield conf


@pytest.fixture
def cluster(conf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLURM_CONF", str(conf))
    return conf


def jobs(folder: Path, silence_s: float = 60.0, **settings: object) -> Jobs:
    return Jobs(SlurmSettings(**settings), folder.name, folder / "logs", silence_s)  # type: ignore[arg-type]


def address(folder: Path) -> SlurmAddress:
    return SlurmAddress("slurm-0", "slurm", folder=str(folder / "jobs"), cpus=1)


def connected(found: Nodes, at: SlurmAddress, said: list[str] | None = None) -> SrunConnection:
    return found.connect(at, lambda doing, limit_s: None if said is None else said.append(doing))


@pytest.mark.nightly
def test_a_run_loses_and_repeats_nothing_when_a_job_is_requeued(cluster: Path, tmp_path: Path) -> None:
    paths = [f"save_path={tmp_path}/run", f"worker_temp_path={tmp_path}/jobs", f"worker_run_path={tmp_path}/env"]
    python = ["install.reuse_packages=true", f"worker_python={sys.executable}", "trainer.device=cpu"]
    episodes = ["bsize=2", "rollout_size=16", "train_iterations=1", "emulator.step_s=0.3", "emulator.reset_s=0.1"]
    words = ["worker_ips=slurm:2", "slurm.cpus=2", "emulator=rehearsal", "agent=generic", *paths, *python, *episodes]
    command = [sys.executable, "-m", "digirl_dist", "--config-path", "config/multimachine", "--config-name", "host"]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen([*command, *words], env=environment(), stdout=said, stderr=said)
    events = tmp_path / "run" / "events.jsonl"

    def happened(kind: str) -> list[str]:
        return [each["worker"] for each in json_lines.read(events) if each["event"] == kind]

    try:
        eventually(lambda: len({*happened("episode")}) == 2 or run.poll() is not None, _SLOW_S, "both workers")
        assert {*asked(cluster, "squeue", "--noheader", "--format=%N").split()} == {"n1", "n2"}
        job = asked(cluster, "squeue", "--noheader", "--format=%i").split()[0]
        asked(cluster, "scontrol", "requeue", job)
        eventually(lambda: happened("worker_lost"), what="the loss of the worker")
        eventually(lambda: "PENDING" in asked(cluster, "squeue", "--noheader", "--format=%T"), what="the requeue")
        asked(cluster, "scontrol", "update", f"jobid={job}", "StartTime=now")  # it would wait for two minutes
        assert run.wait(_SLOW_S) == 0, (tmp_path / "said").read_text()
    finally:
        run.kill()
    landed = parquet.read(tmp_path / "run" / "trajectories" / "000000.parquet")
    assert sorted(each.ticket.key.number for each in landed) == list(range(16))
    assert len(happened("episode")) == 16
    assert len(happened("worker_joined")) == 3
    assert "JOB REQUEUE" in (tmp_path / "said").read_text()
    eventually(lambda: not asked(cluster, "squeue", "--noheader"), what="the end of the jobs")
    nothing_is_left_of(tmp_path)


@pytest.mark.nightly
def test_a_job_ends_by_itself_when_its_host_is_gone(cluster: Path, tmp_path: Path) -> None:
    mine, at = jobs(tmp_path, silence_s=6.0), address(tmp_path)
    connection = connected(Nodes(mine, SSH, None), at)
    assert connection.host in ("n1", "n2")
    job = asked(cluster, "squeue", "--noheader", "--format=%i")
    time.sleep(9)  # longer than it waits without a word
    assert mine.look(job).is_running
    assert connection.run(["echo", "a b"]).stdout == b"a b\n"
    connection.close()
    eventually(lambda: mine.look(job).state == "COMPLETED", what="the end of the job")
    assert not Path(sign_of_life(at.folder, job)).exists()
    assert "no word of the host" in mine.log_tail(job)


def test_bytes_cross_as_they_are_and_a_lost_job_is_told(cluster: Path, tmp_path: Path) -> None:
    mine = jobs(tmp_path)
    connection = connected(Nodes(mine, SSH, None), address(tmp_path))
    content = os.urandom(1 << 20) + b"no line ends here"
    assert connection.run(["cat"], input=content).stdout == content
    assert connection.run("echo why >&2; exit 3").status == 3
    channel = connection.open(["cat"])
    mine.close()
    with pytest.raises(LinkLostError, match="Slurm: .*CANCELLED"):
        channel.read()
    assert not connection.alive
    connection.close()


@pytest.mark.nightly
def test_a_job_that_waits_says_why_and_one_that_fails_shows_its_log(cluster: Path, tmp_path: Path) -> None:
    said: list[str] = []
    held = Nodes(jobs(tmp_path, options=["--hold"]), SSH, pending_s=3.0)
    with pytest.raises(UnreachableError, match="longer than slurm.pending_s: pending, JobHeldUser"):
        connected(held, address(tmp_path), said)
    assert any("pending, JobHeldUser" in each for each in said)
    held.close()
    (tmp_path / "jobs").write_text("no folder")
    failing = Nodes(jobs(tmp_path), SSH, None)
    with pytest.raises(UnreachableError, match=r"(?s)FAILED.*cannot create directory"):
        connected(failing, address(tmp_path))
    failing.close()


def test_a_job_whose_submission_was_not_heard_of_is_not_left_beside_the_next(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch, listing = tmp_path / "sbatch", ["squeue", "--noheader", "--format=%i", f"--name={tmp_path.name}"]
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real = '/usr/bin/env PATH="${PATH#*:}" sbatch "$@"'
    sbatch.write_text(f"#!/bin/sh\n{real} >/dev/null\necho 'sbatch: error: Socket timed out' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    mine = jobs(tmp_path, options=["--hold"])
    for _ in range(3):
        with pytest.raises(ClusterError, match="Socket timed out"):
            mine.submit(address(tmp_path))
        eventually(lambda: len(asked(cluster, *listing).split()) == 1, what="one job")
    sbatch.write_text(f"#!/bin/sh\necho 'Welcome to the cluster'\n{real}\necho '-- maintenance at 8'\n")
    job = mine.submit(address(tmp_path))
    eventually(lambda: asked(cluster, *listing).split() == [job], what="the last job alone")
    mine.close()


def test_what_slurm_would_refuse_is_refused_before_the_start(cluster: Path) -> None:
    good = Settings(worker_ips=["slurm:2"])
    assert list(slurm_says(good)) == ["slurm-0", "slurm-1"]
    with pytest.raises(ClusterError, match="(?i)invalid partition"):
        slurm_says(Settings(worker_ips="slurm:2", slurm=SlurmSettings(partition="nowhere")))
    with pytest.raises(ClusterError, match="(?i)node configuration is not available"):
        slurm_says(Settings(worker_ips=["slurm:1"], slurm=SlurmSettings(cpus=64)))


def test_the_nodes_of_an_allocation_are_its_workers(cluster: Path, tmp_path: Path) -> None:
    program = (
        "from digirl_dist.fleet.roster import worker_configs\n"
        "from digirl_dist.settings import Settings, SshSettings\n"
        "from digirl_dist.slurm.nodes import Nodes\n"
        "for each in worker_configs(Settings(worker_ips=['slurm'])):\n"
        "    connection = Nodes(None, SshSettings(), None).connect(each.address, lambda *_: None)\n"
        "    print(each.name, connection.host, connection.run(['echo', 'hello']).stdout)\n"
        "    connection.close()\n"
    )
    (tmp_path / "program.py").write_text(program)
    out = tmp_path / "out"
    python = [f"PYTHONPATH={environment()['PYTHONPATH']}", sys.executable, str(tmp_path / "program.py")]
    options = ["--nodes=2", "--ntasks-per-node=1", "--wait", f"--output={out}", "--chdir=/"]
    asked(cluster, "sbatch", *options, f"--wrap=env {' '.join(python)}")
    assert out.read_text() == "slurm-0 n1 b'hello\\n'\nslurm-1 n2 b'hello\\n'\n"
