"""A user that has a number and no name, as in a container that runs as any user, and often no home either."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from digirl_dist.child_process import environment

pytestmark = pytest.mark.component

_AS_NAMELESS = ["unshare", "--user", "--map-user=12345", "--map-group=12345"]
_CONNECTED = """
import sys
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.localhost_server import LocalhostServer
with LocalhostServer("w1", sys.argv[1]) as address:
    link = connect(address, SshSettings())
    print(type(link).__name__, link.user, link.run("id -u; pwd").stdout.decode().split())
    link.close()
"""


def _said(command: Sequence[str], variables: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in environment().items() if name not in ("HOME", "LOGNAME", "USER")}
    words, env = [*_AS_NAMELESS, sys.executable, *command], {**kept, **variables}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    if done.stderr.startswith("unshare: "):
        pytest.skip(f"this machine makes no user namespace: {done.stderr.strip()}")
    return done


def test_the_dry_run_reaches_its_workers_by_paramiko_since_ssh_does_not_run(tmp_path: Path) -> None:
    done = _said(["-c", _CONNECTED, str(tmp_path / "server")], {"HOME": str(tmp_path / "nowhere")}, tmp_path)
    assert done.stdout == "ParamikoConnection 12345 ['12345', '/']\n", done.stderr


@pytest.mark.parametrize(
    ("home", "words", "told"),
    [
        (os.sep, ["ssh.transport=openssh"], "ssh.transport=openssh: `ssh` runs for no user without a name"),
        (None, [], "HOME is not set, and user 12345 has no home: set HOME to a folder of yours"),
    ],
)
def test_what_such_a_user_cannot_have_is_refused_in_one_line(
    home: str | None, words: list[str], told: str, tmp_path: Path
) -> None:
    command = ["-m", "digirl_dist", "demo", f"save_path={tmp_path}/run", *words]
    done = _said(command, {} if home is None else {"HOME": home}, tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {told}") and done.stderr.count("\n") == 1, done
    assert not list(tmp_path.iterdir())
