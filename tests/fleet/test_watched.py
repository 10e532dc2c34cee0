"""Workers come and go by the YAML file while the run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from process_watch import eventually, nothing_is_left_of
from test_run import MINE, ROOT, events, keys

from digirl_dist.fleet.roster import WatchedRoster
from digirl_dist.settings.configuration import Source
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.localhost_server import LocalhostServer

pytestmark = pytest.mark.long_file(20)


class Roster:
    """A copy of the configuration whose ``worker_ips`` changes, and two workers for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.configuration = folder / "config"
        shutil.copytree(ROOT / "config" / "multimachine", self.configuration)
        (folder / "home" / ".ssh").mkdir(parents=True)
        addresses = [stack.enter_context(LocalhostServer(name, folder / name)) for name in ("w1", "w2")]
        known = [(folder / one.name / "known_hosts").read_text() for one in addresses]
        (folder / "home" / ".ssh" / "known_hosts").write_text("".join(known))
        self.w1, self.w2 = map(self._entry, addresses)

    def _entry(self, address: Address) -> dict[str, Any]:
        where = {"host": address.host, "port": address.port, "username": address.user, "key": address.key}
        return {**where, "name": address.name, "temp_path": str(self.folder / "jobs" / address.name)}

    def names(self, *workers: dict[str, Any]) -> None:
        """Replace the file as an editor does."""
        content = {"defaults": ["default", "_self_"], "parallel": "host", "worker_ips": list(workers)}
        self.write(yaml.safe_dump(content))

    def write(self, text: str) -> None:
        part = self.configuration / "host.part"
        part.write_text(text)
        part.replace(self.configuration / "host.yaml")

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            str(ROOT / "run.py"),
            "--config-path",
            str(self.configuration),
            "--config-name",
            "host",
        ]
        words = [
            *MINE,
            *(f"save_path={self.folder / 'run'}", f"worker_run_path={self.folder / 'env'}", "rollout_size=12"),
            *(f"worker_python={sys.executable}", "install.reuse_packages=true", "train_iterations=100000"),
            "emulator.kwargs={step_s: 0.05}",
        ]
        home = {"HOME": str(self.folder / "home")}
        return subprocess.Popen([*command, *words], cwd=ROOT / "tests", env={**os.environ, **home})

    def happened(self, kind: str, worker: str = "") -> bool:
        return any(not worker or event.get("worker") == worker for event in events(self.folder / "run", kind))


@pytest.fixture
def roster(tmp_path: Path) -> Iterator[Roster]:
    with ExitStack() as stack:
        yield Roster(tmp_path, stack)


@pytest.mark.nightly
@pytest.mark.system
def test_a_worker_that_is_added_joins_a_broken_file_is_ignored_and_who_is_removed_leaves(roster: Roster) -> None:
    roster.names(roster.w1)
    process = roster.start()
    try:
        eventually(lambda: roster.happened("episode", "w1"), 90, "the first episode")
        roster.write("worker_ips: [{host")
        eventually(lambda: roster.happened("roster_refused"), 15, "the report of the broken file")
        roster.names(roster.w1, roster.w1)
        eventually(lambda: len(events(roster.folder / "run", "roster_refused")) == 2, 15, "the refusal of a duplicate")
        assert "names 'w1' twice" in events(roster.folder / "run", "roster_refused")[1]["reason"]
        roster.names(roster.w1, roster.w2)
        eventually(lambda: roster.happened("worker_added", "w2"), 15)
        eventually(lambda: roster.happened("episode", "w2"), 60, "an episode of the worker that was added")
        roster.names(roster.w2)
        eventually(lambda: roster.happened("worker_left", "w1"), 15, "the end of the worker that was removed")
        nothing_is_left_of(roster.folder / "jobs" / "w1")
        gone = len(events(roster.folder / "run", "episode"))
        eventually(lambda: len(events(roster.folder / "run", "episode")) > gone + 12, 30, "a run that goes on")
        assert not roster.happened("worker_lost") and not roster.happened("episode_retried")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(40)
    assert process.returncode == 130
    assert set(keys(roster.folder / "run").values()) == {1}


class _Named:
    """Stands for the fleet: only the names of its workers matter here."""

    def __init__(self, *names: str) -> None:
        self.workers = dict.fromkeys(names)
        self.did: list[str] = []

    def add(self, spec: Any, job: Any) -> None:
        self.workers = {**self.workers, spec: None}
        self.did.append(f"added {spec}")

    def release(self, name: str) -> None:
        self.did.append(f"released {name}")

    def refuse(self, reason: str) -> None:
        self.did.append(f"refused: {reason}")


@pytest.mark.unit
def test_a_worker_that_comes_back_while_it_still_leaves_joins_once_it_has_left(tmp_path: Path) -> None:
    named, fleet = ["w1", "w2"], _Named("w1", "w2")
    read: Any = lambda: [SimpleNamespace(name=name) for name in named]  # noqa: E731
    watched = WatchedRoster(tmp_path, read, lambda config: (config.name, None), fleet)  # type: ignore
    named.remove("w2")
    watched.look()
    named.append("w2")
    watched.look()
    assert fleet.did == ["released w2"]
    del fleet.workers["w2"]
    watched.look_if_changed()  # no file has changed since
    watched.look_if_changed()
    assert fleet.did == ["released w2", "added w2"]


@pytest.mark.unit
def test_what_cannot_be_looked_at_now_is_told_once_and_looked_at_again(tmp_path: Path) -> None:
    named, fleet = ["w1"], _Named("w1")
    defects: list[Exception] = [OSError("stale handle")] * 3 + [KeyError("planted")] * 2

    def read() -> Any:
        if defects:
            raise defects.pop(0)
        return [SimpleNamespace(name=name) for name in named]

    (tmp_path / "host.yaml").symlink_to("host.yaml")
    watched = WatchedRoster(tmp_path, read, lambda config: (config.name, None), fleet, 0.01)  # type: ignore
    named.append("w2")
    (tmp_path / "other.yaml").touch()
    watched.start()
    eventually(lambda: "added w2" in fleet.did)
    watched.close()
    assert [what[:7] for what in fleet.did] == ["refused", "refused", "added w"]
    assert "stale handle" in fleet.did[0] and "planted" in fleet.did[1] and str(tmp_path) in fleet.did[0]


@pytest.mark.unit
def test_a_worker_that_could_not_be_added_is_added_at_a_later_look(tmp_path: Path) -> None:
    """Small, and real: the machine refuses a thread, and no file changes after that."""

    class Refusing(_Named):
        def add(self, spec: Any, job: Any) -> None:
            if not self.did:
                self.did.append("refused a thread")
                raise RuntimeError("can't start new thread")
            super().add(spec, job)

    fleet = Refusing()
    read: Any = lambda: [SimpleNamespace(name="w1")]  # noqa: E731
    watched = WatchedRoster(tmp_path, read, lambda config: (config.name, None), fleet)  # type: ignore
    (tmp_path / "host.yaml").touch()
    with pytest.raises(RuntimeError):
        watched.look_if_changed()
    watched.look_if_changed()
    watched.look_if_changed()
    assert fleet.did == ["refused a thread", "added w1"]


def test_workers_of_the_command_line_are_not_looked_for_in_the_file() -> None:
    assert Source("config", "host", ("bsize=2", "worker_ips=[a]")).overrides_key("worker_ips")
    assert not Source("config", "host", ("bsize=2",)).overrides_key("worker_ips")
