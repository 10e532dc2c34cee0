"""Machines as they are: what Python builds, kernels and file systems lack is done without, or named with its remedy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.machine import Disk
from digirl_dist.capacity import Machine, core_limits, memory_limits, own_groups
from digirl_dist.child_process import environment
from digirl_dist.collect.leases import Leases
from digirl_dist.collect.worker_table import WorkerTable
from digirl_dist.doctor import examine, judgement, probe
from digirl_dist.errors import HostFullError, LinkLostError, RunFolderError, failure_here
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.worker_events import Added, Lost
from digirl_dist.settings import LimitSettings
from digirl_dist.storage import file_system, json_lines
from digirl_dist.storage.disk_full import FailFast
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status

_OPTIONAL = {
    "os": "pidfd_open memfd_create splice sched_getaffinity copy_file_range eventfd waitid P_PIDFD posix_fallocate",
    "signal": "pidfd_send_signal",
    "fcntl": "F_SETPIPE_SZ F_GETPIPE_SZ",
    "resource": "prlimit",
    "time": "CLOCK_BOOTTIME",
    "socket": "TCP_USER_TIMEOUT",
}
"""Of the standard library, what a Python that was built on old kernel headers or an old libc lacks."""


@pytest.mark.nightly
@pytest.mark.system
def test_a_run_needs_nothing_that_a_python_build_or_a_kernel_may_lack(tmp_path: Path) -> None:
    lines = [
        f"import {name}\nfor each in '{each}'.split(): vars({name}).pop(each, None)" for name, each in _OPTIONAL.items()
    ]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    words = [
        "dry_run=true",
        "emulator=rehearsal",
        "agent=generic",
        "emulator.reset_s=0",
        "emulator.step_s=0",
        "bsize=2",
    ]
    words += [f"save_path={tmp_path}/run", "rollout_size=4", "train_iterations=1", "trainer.device=cpu"]
    command = [sys.executable, "-m", "digirl_dist", "--config-path", "config/multimachine", "--config-name", "host"]
    environ = {**environment(), "PYTHONPATH": f"{environment()['PYTHONPATH']}:{tmp_path}"}
    check = [sys.executable, "-c", "import os; os.pidfd_open"]
    assert subprocess.run(check, env=environ, capture_output=True).returncode == 1
    done = subprocess.run([*command, *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [each["event"] for each in json_lines.read(tmp_path / "run" / "events.jsonl")]
    assert events.count("episode") >= 4 and "worker_lost" not in events


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")
    return folder


def test_control_groups_of_version_1_limit_cores_and_memory(tmp_path: Path) -> None:
    limited = group(
        tmp_path / "limited",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="700",
        memory__stat="inactive_file 1\ntotal_inactive_file 400\nhierarchical_memory_limit 1000",
        cpu__cfs_quota_us="50000",
        cpu__cfs_period_us="100000",
    )
    free = group(
        tmp_path / "free", memory__limit_in_bytes=str(2**63 - 4096), cpu__cfs_quota_us="-1", cpu__cfs_period_us="1"
    )
    odd = group(tmp_path / "odd", memory__max="", cpu__max="x", memory__high="500", memory__current="100")
    assert list(core_limits([limited, free, odd])) == [0.5]
    assert list(memory_limits([limited])) == [700] and list(memory_limits([odd])) == [400]
    assert min(memory_limits([free])) > 2**60


_V1 = "11:memory:{0}\n4:cpu,cpuacct:{0}\n1:name=systemd:/user.slice/session-1.scope\n"
_MOUNTED_V1 = (
    "35 31 0:32 {0} {1}/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 {0} {1}/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct\n"
)
_MOUNTED_V2 = "41 31 0:38 {0} {1} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("memberships", "mounts", "found"),
    [
        ("0::/a/b\n", _MOUNTED_V2.format("/", "/c"), ["/c/a/b", "/c/a", "/c"]),
        (
            _V1.format("/a:b"),
            _MOUNTED_V1.format("/", "/c"),
            ["/c/memory/a:b", "/c/memory", "/c/cpu,cpuacct/a:b", "/c/cpu,cpuacct"],
        ),
        (_V1.format("/docker/1"), _MOUNTED_V1.format("/docker/1", "/c"), ["/c/memory", "/c/cpu,cpuacct"]),
        ("0::/../other\n", _MOUNTED_V2.format("/pod", "/c"), ["/c"]),
        ("0::/\n", _MOUNTED_V2.format("/", "/a\\040b"), ["/a b"]),
        ("4:memory:/m\n0::/u\n", _MOUNTED_V2.format("/", "/c/unified"), ["/c/unified/u", "/c/unified"]),
        ("nonsense\n1:x\n", "nonsense\n - cgroup2\n", []),
        ("", "", []),
    ],
)
def test_the_groups_of_a_process_are_found_wherever_they_are_mounted(
    memberships: str, mounts: str, found: list[str]
) -> None:
    assert [str(each) for each in own_groups(memberships, mounts)] == found


def test_doctor_and_bsize_auto_see_the_same_machine() -> None:
    facts, here = probe.look(probe.ProbeRequest({}, [], False, None, 1)), Machine.here()
    assert facts["cores"] == here.cores
    assert facts["memory_mb"] == pytest.approx(here.memory_mib, rel=0.3)


@pytest.fixture
def squashed(tmp_path: Path) -> Iterator[Path]:
    """A folder on a server of files that shows user 4999 as the owner of everything."""
    behind, shown = tmp_path / "behind", tmp_path / "shown"
    behind.mkdir()
    shown.mkdir()
    command = ["bindfs", "--force-user=4999", "--force-group=4999", "--chown-ignore", behind, shown]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(
            "bindfs cannot mount here"
        )
    yield shown
    subprocess.run(["umount", "--lazy", shown], check=True)


@pytest.mark.component
def test_a_file_server_that_gives_every_file_one_owner_is_no_other_user(squashed: Path) -> None:
    (squashed / "team").mkdir(mode=0o777)
    (squashed / "team" / "run").mkdir(mode=0o700)
    assert (squashed / "team" / "run").stat().st_uid == 4999
    file_system.refuse_squatted(squashed / "team" / "run")
    (squashed.parent / "link").symlink_to(squashed / "team")
    file_system.refuse_squatted(squashed.parent / "link" / "run")
    assert not any(path.is_file() for path in squashed.rglob("*"))


@pytest.mark.component
def test_a_disk_without_inodes_is_not_told_as_one_without_space(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("only root can make a small disk")
    disk = Disk(tmp_path / "disk", "64m,nr_inodes=40")
    try:
        facts = probe.folder_facts(disk.folder / "env")
        check = next(judgement.judge_folders("w1", {"folders": {"run_path": facts}, "torch": None, "user": "root"}))
        assert (
            not check.ok and check.blocks and "files (inodes) free" in check.detail and "delete files" in check.remedy
        )
        checked = examine.host_disk(disk.folder / "run")
        assert not checked.ok and "files (inodes)" in checked.detail
        with pytest.raises(OSError, match="No space left") as caught:
            for number in range(100):
                (disk.folder / str(number)).touch()
        told = file_system.in_words(caught.value, disk.folder / "100")
        assert "all inodes are used (`df -i`), with 63 MiB free" in told or "64 MiB free" in told
        error = caught.value
        with pytest.raises(RunFolderError, match="inodes"):
            FailFast().wait_for("the file", lambda: _raise(error))
    finally:
        disk.close()


def _raise(error: OSError) -> None:
    raise error


def test_a_quota_is_told_as_one() -> None:
    told = file_system.in_words(OSError(errno.EDQUOT, "Disk quota exceeded"), Path("/"))
    assert told.startswith("Disk quota exceeded") and "quota -s" in told


@pytest.mark.parametrize("number", file_system.NO_LOCKS)
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refused)
    with (tmp_path / "lock").open("w") as file, pytest.raises(OSError, match="its file system has no locks") as caught:
        file_system.lock(file)
    assert caught.value.filename == str(tmp_path / "lock")
    facts = probe.folder_facts(tmp_path)
    check = next(judgement.judge_folders("w1", {"folders": {"temp_path": facts}, "torch": None, "user": "me"}))
    assert (
        not check.ok and "no locks" in check.detail and "worker_temp_path to a folder on a local disk" in check.remedy
    )
    with pytest.raises(RunFolderError, match=r"save_path=.* its file system has no locks .*local disk"):
        RunFolder(tmp_path / "run", "")


@pytest.mark.component
@pytest.mark.parametrize("place", ["closed/folder/below", "file/below", "loop/below"])
def test_a_folder_that_cannot_be_looked_at_is_a_failed_check(place: str, tmp_path: Path) -> None:
    """As another user, since root sees all."""
    (tmp_path / "closed" / "folder").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    script = (
        "import os, sys\nfrom digirl_dist.doctor import examine, probe\nfrom pathlib import Path\n"
        f"sys.stdin.close()\nif os.geteuid() == 0: os.setgroups([]); os.setuid(65533)\n"
        f"place = Path({str(tmp_path / place)!r})\n"
        "print(probe.folder_facts(place)['writable'], examine.host_disk(place).ok)\n"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    (tmp_path / "closed").chmod(0o700)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_hosts_own_full_disk_is_not_told_as_a_lost_worker(tmp_path: Path) -> None:
    told: list[tuple[str, Any]] = []
    events = Events(tmp_path / "events.jsonl", (lambda kind, content: told.append((kind, content)),))
    fleet: Fleet[Any] = Fleet([], None, LimitSettings())  # type: ignore[arg-type]
    table = WorkerTable(
        fleet, Leases(3, time.monotonic), LimitSettings(), events, Status(tmp_path / "status.json"), time.monotonic
    )
    table.take_in(Added("w1"))
    for number in file_system.FULL:
        error = failure_here("w1", "connect", OSError(number, os.strerror(number), "/tmp/digirl-ssh"))
        assert isinstance(error, HostFullError) and "this host cannot connect" in error.reason
        assert "/tmp/digirl-ssh" in error.reason and "this host's disks" in error.remedy
        table.take_in(Lost("w1", error))
    assert [kind for kind, _ in told if kind in ("worker_lost", "disk_full")] == ["disk_full"] * 2
    table.take_in(Lost("w1", LinkLostError("w1", "the link broke")))
    assert told[-1][0] == "worker_lost"
    events.close()
