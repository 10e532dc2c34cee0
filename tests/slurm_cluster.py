"""A Slurm cluster on this machine: a slurmctld, and two slurmd that play a node each, all on loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from process_watch import eventually

from digirl_dist.parallel.loopback import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_END_S = 15
_CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
ReturnToService=2
KillWait=3
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SchedulerParameters=sched_min_interval=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=two Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster() -> Iterator[Path]:
    """Yields its slurm.conf, which SLURM_CONF names to Slurm's commands."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a Unix socket's path has at most 107 bytes
    conf = folder / "slurm.conf"
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    conf.write_text(_CONF.format(folder=folder, user=user, host=host, ports=[free_port() for _ in range(3)]))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("socket", "key-file", "pid-file")]
        munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
        _run(stack, ["munged", "--foreground", "--force", *munge], conf)
        eventually((folder / "munge.socket").exists, what="munge's socket")
        _run(stack, ["slurmctld", "-D", "-i"], conf)
        for node in ("n1", "n2"):
            _run(stack, ["slurmd", "-D", "-N", node], conf)
        eventually(lambda: asked(conf, "sinfo", "--noheader", "--format=%t %D").split() == ["idle", "2"], what="nodes")
        stack.callback(_ends, conf)
        yield conf


def asked(conf: Path, *command: str) -> str:
    """Returns what one of Slurm's commands prints."""
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip()


def _ends(conf: Path) -> None:
    asked(conf, "scancel", f"--user={os.getuid()}")
    eventually(lambda: not asked(conf, "squeue", "--noheader"), what="the end of all jobs")


def _run(stack: ExitStack, command: list[str], conf: Path) -> None:
    path = f"/usr/sbin:{os.environ['PATH']}"
    with (conf.parent / f"{command[0]}.out").open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, "PATH": path, "SLURM_CONF": str(conf)}
        )
    stack.callback(process.wait, _END_S)
    stack.callback(process.terminate)
