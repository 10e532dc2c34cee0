"""Every mode that runs on one machine, and what listens meanwhile that another user of the machine could use."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest
from emulator.android.fake_emulator import make_token
from emulator.android.sites import make_sdk
from listening import Listener, as_another_user, listeners, tree
from rank_launch import ROOT, started

pytestmark = pytest.mark.system

RUN = [sys.executable, str(ROOT / "run.py"), "--config-path", "config/multimachine", "--config-name", "host"]
RANKS = [sys.executable, "-m", "digirl_dist.parallel.launch", "--nproc_per_node=2"]
CARTPOLE = ["emulator=gymnasium", "emulator.id=CartPole-v1", "rollout_size=6", "bsize=2", "train_iterations=1"]
LIMIT_S = 150.0

SSH = "digirl_dist.ssh.localhost_server"
RANK = "digirl_dist run"
TRAIN = "digirl_dist.train"
GOOGLES_PROGRAM = "emulator.android.fake_emulator"


@dataclass
class Seen:
    """What was found while a mode ran: its listeners, and what guards those that are meant to be there."""

    listeners: set[Listener] = field(default_factory=set)
    guarded: set[str] = field(default_factory=set)
    """Files that another user would need."""
    refusals: int = 0
    """Logins that were tried without the key, and refused."""

    def look(self, pid: int) -> None:
        found = set(listeners(pid))
        for one in found - self.listeners:
            if SSH in one.program:
                self.refusals += refuses_strangers(one)
        self.listeners |= found
        for process in tree(pid):
            try:
                words, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            if SSH in words:
                self.guarded.add(f"{words[-1]}/user_key")
            if store := variables.get("DIGIRL_DIST_STORE"):
                self.guarded.add(store)

    def programs(self) -> set[str]:
        """The kinds of programs that listened, by the names above; what has none is told in full."""
        names = (SSH, RANK, TRAIN, GOOGLES_PROGRAM)
        return {next((name for name in names if name in one.program), str(one)) for one in self.listeners}


def watched(command: list[str], **variables: str) -> Seen:
    """Run a mode to its end, and look all the while."""
    seen, unread = Seen(), set[str]()
    with started(command, **variables) as process:
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None:
            assert time.monotonic() < deadline, f"{command} took longer than {LIMIT_S} s"
            seen.look(process.pid)
            for path in seen.guarded - unread:
                if Path(path).exists():
                    unread.add(path)
                    assert as_another_user(OPEN, path).stdout == "PermissionError\n", path
            time.sleep(0.3)
        assert process.stdout is not None
        assert process.returncode == 0, process.stdout.read()
    assert unread == seen.guarded
    assert {one.address for one in seen.listeners} <= {"127.0.0.1", "::1"}
    return seen


OPEN = """
import sys
try:
    open(sys.argv[1]).close()
except OSError as error:
    print(type(error).__name__)
"""


def refuses_strangers(server: Listener) -> int:
    """Whether the dry run's server lets nobody in without its key: 1, or an error."""
    with paramiko.Transport((server.address, server.port)) as transport:
        transport.start_client(timeout=120)
        with pytest.raises(paramiko.BadAuthenticationType) as without:
            transport.auth_none("root")
        assert without.value.allowed_types == ["publickey"]
        with pytest.raises(paramiko.AuthenticationException):
            transport.auth_publickey("root", paramiko.ECDSAKey.generate())
    return 1


def over_ssh(folder: Path) -> Seen:
    """With the policy in a process of the host's."""
    return watched([*RUN, "dry_run=true", "inference=host", *CARTPOLE, f"save_path={folder}"])


def trainer_torchrun(folder: Path) -> Seen:
    """With browsers, which are driven over pipes."""
    words = ["emulator=miniwob", "emulator.task=click-test-2", "rollout_size=2", "bsize=1", "train_iterations=1"]
    return watched([*RUN, "parallel=single", "trainer=torchrun", *words, "max_steps=2", f"save_path={folder}"])


def ranks(folder: Path) -> Seen:
    return watched(
        [*RANKS, "-m", TRAIN, "--distributed", "--config-name", "ranks", "train_iterations=1", f"save_path={folder}"]
    )


def android(folder: Path) -> Seen:
    sdk = make_sdk(folder)
    make_token(folder)
    places = [f"emulator.sdk_path={folder / 'sdk'}", f"emulator.avd_home={folder / 'avd'}", "emulator.masked=[]"]
    words = ["emulator=android", "emulator.avd=demo", *places, f"emulator.lock_path={folder / 'locks'}"]
    (folder / "tasks.yaml").write_text(
        "- {id: look, instruction: Look., params: {check: {command: 'true', matches: x}}}\n"
    )
    words += [f"task_set={folder / 'tasks.yaml'}", "emulator.reset_commands=[]"]
    sizes = ["rollout_size=2", "bsize=1", "train_iterations=1", "max_steps=2", "emulator.image_size=[96,64]"]
    assert sdk.content.exists()
    return watched([*RUN, "parallel=single", *words, *sizes, f"save_path={folder / 'run'}"], HOME=str(folder))


MODES: dict[Callable[[Path], Seen], set[str]] = {
    over_ssh: {SSH},  # which wants a key that only its user can read
    trainer_torchrun: {RANK},  # gloo's: numbers only, and whom it let in is looked at (tests/parallel/test_launch.py)
    ranks: {TRAIN},  # the same
    android: {GOOGLES_PROGRAM},  # console and adb of the emulator program itself: see docs/android.md
}
"""What may listen on loopback in each, by design."""


def _nightly(mode: Callable[[Path], Seen]) -> Any:
    """What listens there is Google's own, or for numbers only."""
    return pytest.param(mode, marks=pytest.mark.nightly)


@pytest.mark.long(40)
@pytest.mark.parametrize("mode", [over_ssh, *map(_nightly, (trainer_torchrun, ranks, android))])
def test_nothing_listens_that_another_user_could_use(
    mode: Callable[[Path], Seen], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if mode in (trainer_torchrun, android):
        request.getfixturevalue("adb_is_installed" if mode is android else "chromium_is_installed")
    seen = mode(tmp_path)
    assert seen.programs() == MODES[mode]
    if SSH in MODES[mode]:
        assert seen.refusals == len(seen.listeners) == 2
    if MODES[mode] & {RANK, TRAIN, SSH}:
        assert seen.guarded


def test_a_port_that_is_open_to_others_would_be_found() -> None:
    program = "import socket, time; s = socket.create_server(('', 0)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        [found] = listeners(process.pid)
        assert found.address == "0.0.0.0"
        process.kill()
