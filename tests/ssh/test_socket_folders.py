"""The folders of ssh's sockets go with their process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from digirl_dist.child_process import environment
from digirl_dist.ssh.carriers.openssh import SocketFolders

pytestmark = pytest.mark.component
HOST = "from digirl_dist.ssh.carriers.openssh import SocketFolders; print(SocketFolders().make(), flush=True); input()"


def test_the_next_start_deletes_what_a_killed_process_left_and_nothing_of_one_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path("/tmp") / f"t{os.getpid()}"
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(here))
    of_others = here / "digirl-ssh-others"
    (of_others / "lock").mkdir(parents=True)
    hosts = [_host(here) for _ in range(2)]
    folders = [Path((host.stdout or sys.stdin).readline().strip()) for host in hosts]
    hosts[0].kill()
    hosts[0].wait()
    assert folders[0].exists() and folders[0].stat().st_mode & 0o777 == 0o700
    mine = SocketFolders().make()
    assert not folders[0].parent.exists() and folders[1].exists() and mine.exists() and of_others.exists()
    hosts[1].communicate("\n")
    assert not folders[1].parent.exists(), "it ended in order"
    subprocess.run(["rm", "-r", here], check=True)


def _host(here: Path) -> subprocess.Popen[str]:
    env = {**environment(), "TMPDIR": str(here)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOST], env=env, stdin=pipe, stdout=pipe, text=True)
