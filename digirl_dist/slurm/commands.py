"""Slurm's own commands, with limits, and with their words in our errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from digirl_dist.errors import ClusterError
from digirl_dist.ssh import local_command

_LIMIT_S = 60.0
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
EXPORT = "--export=HOME,USER,LOGNAME,PATH,LANG"
"""What the environment of a job has besides Slurm's own variables: no key of the host's environment travels."""


def environment() -> dict[str, str]:
    """Returns this process's environment for Slurm's commands.

    Without what an allocation around this process would set as their options, and without its virtual environment.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "SQUEUE_"))
    }
    own = str(Path(sys.prefix) / "bin")
    folders = kept.get("PATH", os.defpath).split(os.pathsep)
    return {**kept, "PATH": os.pathsep.join(each for each in folders if sys.prefix == sys.base_prefix or each != own)}


def ask(command: list[str], input: str = "", environ: dict[str, str] | None = None) -> tuple[str, str]:
    """Returns stdout and stderr of one of Slurm's commands. Raises ClusterError with its words."""
    name = command[0]
    try:
        status, said, complaint = local_command.ended(command, _LIMIT_S, input.encode(), environ or environment())
    except FileNotFoundError as error:
        raise ClusterError(f"this machine has no `{name}`: start the run where Slurm's commands are") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`{name}` did not answer within {_LIMIT_S:g} s: is slurmctld up (`scontrol ping`)?"
        ) from error
    except OSError as error:
        raise ClusterError(f"`{name}` does not start: {error.strerror}") from error
    if status != 0:
        raise ClusterError(f"`{name}` failed: {words(complaint) or f'status {status}'}")
    return said, complaint


def words(stderr: str) -> str:
    """Returns what a command says, without its own name before each line."""
    lines = [line.partition(": ")[2] if line.startswith(("s", "allocation")) else line for line in stderr.splitlines()]
    return "; ".join(line.removeprefix("error: ").strip() for line in lines if line.strip())
