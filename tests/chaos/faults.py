"""The kinds of faults: how each strikes, and the event and time within which it must be noticed."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from chaos import forgery
from chaos.content import CONTENT
from chaos.ground import LIMITS, POLICY_STUCK_S, RunContext
from chaos.lies import LIES, Lie
from chaos.machine import Disk, Machine, send
from chaos.processes import eventually
from chaos.watch import Event, Watch
from digirl_dist.settings import Inference

_LOADED_S = 6.0
"""Time that two busy cores may add to any limit."""
_SILENT_S = 3.0 + max(LIMITS["ssh.silence_s"] + LIMITS["ssh.ping_s"], LIMITS["limits.silence_s"]) + _LOADED_S
_EMULATOR_S = max(LIMITS["limits.boot_s"], LIMITS["limits.step_s"] + LIMITS["limits.reset_s"]) + _LOADED_S
"""It may be struck while it boots."""
_AT_ONCE_S = _LOADED_S


@dataclass
class Scene:
    """The place where a fault strikes."""

    ground: RunContext
    watch: Watch
    machine: Machine
    rng: random.Random


Strike = Callable[[Scene], bool]


@dataclass(frozen=True)
class Fault:
    """A kind of fault. ``strike`` returns whether there was something to strike; ``mend`` undoes what no software can.

    ``events`` and ``reason`` (a regular expression) describe the event that must appear within ``limit_s``; without
    ``events`` none is expected. ``why`` is the text that ``digirl-dist why`` must then show with the worker's name;
    None: it shows the reason.
    ``lie`` has the worker lie in place of ``strike``, until it is named and out of service.
    ``alone``: it concerns the host, so no other fault may be active. ``root``: only root can do it. ``host_acts``: only
    if the policy acts on the host.
    """

    name: str
    strike: Strike = lambda scene: True
    events: tuple[str, ...] = ()
    reason: str = ""
    limit_s: float = _AT_ONCE_S
    why: str | None = None
    mend: Callable[[Scene], object] = lambda scene: None
    alone: bool = False
    root: bool = False
    host_acts: bool = False
    lie: Lie | None = None

    @property
    def explanation(self) -> str:
        return self.reason if self.why is None else self.why

    def is_told_by(self, event: Event, worker: str | None) -> bool:
        said = str(event.content.get("reason", ""))
        return event.kind in self.events and event.of(worker) and re.search(self.reason, said) is not None


def _signal(number: signal.Signals, target: Callable[[Scene], psutil.Process | None]) -> Strike:
    """Returns a strike that sends a signal to a process, if there is one."""
    return lambda scene: send(target(scene), number)


def _emulator(scene: Scene) -> psutil.Process | None:
    emulators = scene.machine.emulators()
    return scene.rng.choice(emulators) if emulators else None


def _kill_server(scene: Scene) -> bool:
    scene.machine.sshd.kill()
    return True


def _stop_server(scene: Scene) -> bool:
    stopped = [send(process, signal.SIGSTOP) for process in scene.machine.sshd.processes()]
    return any(stopped)


def _restart_server(scene: Scene) -> None:
    """Restarts the server, as an administrator would: its sessions would never end by themselves."""
    scene.machine.sshd.kill()
    scene.machine.sshd.start()


def _kill_host(scene: Scene) -> bool:
    scene.ground.kill_host()
    return True


def _stop_host(scene: Scene) -> bool:
    scene.watch.host_is_held = True
    scene.ground.host.send_signal(signal.SIGSTOP)
    time.sleep(scene.rng.uniform(6.0, 9.0))
    return True


def _resume_host(scene: Scene) -> None:
    scene.ground.host.send_signal(signal.SIGCONT)
    time.sleep(2.0)
    scene.watch.host_is_held = False


def _cut(scene: Scene) -> bool:
    scene.machine.relay.cut()
    return True


def _half_open(scene: Scene) -> bool:
    scene.machine.relay.swallow(*scene.rng.choice([(True, True), (True, False), (False, True)]))
    return True


def _spoil(change: Callable[[bytes], bytes]) -> Strike:
    """Returns a strike that stops the courier and changes a finished episode before the host can fetch it.

    An episode whose duplicate landed first is dropped unread, which does not count as a strike.
    """

    def strike(scene: Scene) -> bool:
        started = time.monotonic()
        courier = scene.machine.courier()
        if not send(courier, signal.SIGSTOP):
            return False
        try:
            episode = forgery.spoil_next(scene.machine.jobs, change, limit_s=4.0)
        finally:
            send(courier, signal.SIGCONT)
        if episode is None:
            return False
        told = scene.watch.wait(started, lambda event: event.content.get("episode") == episode, _AT_ONCE_S)
        return told is None or told.kind != "episode_dropped"

    return strike


def _alter(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _plant(**forged: Any) -> Strike:
    """Returns a strike that forges files and cuts the connection: the worker announces them after the reconnect."""
    return lambda scene: forgery.plant(scene.machine.jobs, **forged) and _cut(scene)


def _workers_disk(scene: Scene) -> Disk:
    assert scene.machine.disk is not None
    return scene.machine.disk


def _hosts_disk(scene: Scene) -> Disk:
    assert scene.ground.disk is not None
    return scene.ground.disk


def _fill_workers_disk(scene: Scene) -> bool:
    """Fills the disk again and again until an event reports it, because running processes free some space."""
    started, name = time.monotonic(), scene.machine.name

    def is_noticed(event: Event) -> bool:
        return event.of(name) and "No space left" in str(event.content.get("reason"))

    while time.monotonic() - started < 8.0 and scene.watch.first(started, is_noticed) is None:
        _workers_disk(scene).fill()
        time.sleep(0.1)
    return True


def _fill_hosts_disk(scene: Scene) -> bool:
    until = time.monotonic() + scene.rng.uniform(3.0, 5.0)
    while time.monotonic() < until:
        _hosts_disk(scene).fill()
        time.sleep(0.1)
    return True


def _jump_the_clock(scene: Scene) -> bool:
    scene.ground.clock.write_text(str(scene.rng.choice([-86400.0, -3600.0, 3600.0, 86400.0, 0.0])))
    return True


def _start_other_version(scene: Scene) -> bool:
    """Starts a program of another version on the folder before the host can start its own."""
    machine = scene.machine
    folder = forgery.job_folder(machine.jobs)
    if folder is None or machine.program() is None:
        return False
    machine.relay.refuse(True)
    machine.relay.cut()
    try:
        send(machine.program(), signal.SIGKILL)
        eventually(lambda: machine.program() is None, 5.0)
        command = [sys.executable, "-m", "digirl_dist.worker_program.attach", "--folder", str(folder.root)]
        from digirl_dist.child_process import environment

        attach = subprocess.Popen(
            [*command, "--orphan-s", "20", "--package", "another"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        serves = eventually(lambda: machine.program() is not None, 10.0)
        time.sleep(1.0)  # until it listens
        attach.kill()
        attach.communicate()
    finally:
        machine.relay.refuse(False)
    return serves


def _clean_up(scene: Scene) -> bool:
    """Deletes all files of a worker, as what tidies /tmp does."""
    found = list(scene.machine.jobs.glob("*/*"))
    for path in found:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return bool(found)


def _refuse_logins(scene: Scene) -> bool:
    scene.machine.sshd.let_in(False)
    return _cut(scene)


_LOST = ("worker_lost",)
_REFUSED = ("episode_refused",)
_NOT_ANNOUNCED = "is not the file that was announced"
_NO_SPACE = "No space left"
FAULTS = [
    Fault("kill -9 of an emulator", _signal(signal.SIGKILL, _emulator), ("slot",), "ended during its"),
    Fault("SIGSTOP of an emulator", _signal(signal.SIGSTOP, _emulator), ("slot",), "did not answer its", _EMULATOR_S),
    Fault(
        "kill -9 of the program",
        _signal(signal.SIGKILL, lambda scene: scene.machine.program()),
        _LOST,
        "the worker program ended",
    ),
    Fault(
        "SIGSTOP of the program",
        _signal(signal.SIGSTOP, lambda scene: scene.machine.program()),
        _LOST,
        "program is silent",
        _SILENT_S,
    ),
    Fault(
        "kill -9 of the SSH server",
        _kill_server,
        _LOST,
        why="worker_lost",
        mend=lambda scene: scene.machine.sshd.start(),
    ),
    Fault("SIGSTOP of the SSH server", _stop_server, _LOST, "", _SILENT_S, "worker_lost", mend=_restart_server),
    Fault("connection cut", _cut, _LOST, why="worker_lost"),
    Fault(
        "login refused for a while",
        _refuse_logins,
        _LOST,
        "does not let",
        20.0,
        mend=lambda scene: scene.machine.sshd.let_in(True),
    ),
    Fault("files of a worker deleted", _clean_up, (*_LOST, *_REFUSED), "No such file", 15.0),
    Fault("connection half-open", _half_open, _LOST, "", _SILENT_S, "worker_lost"),
    Fault("truncated episode", _spoil(lambda data: data[: len(data) // 2]), _REFUSED, _NOT_ANNOUNCED),
    Fault("altered episode", _spoil(_alter), _REFUSED, _NOT_ANNOUNCED),
    Fault("episode of another run", _plant(run="another"), _REFUSED, "run another", 12.0),
    Fault("stale episode", _plant(iteration=10**6), ("episode_dropped",), "", 12.0),
    Fault("half-written manifest", _plant(cut=True), _REFUSED, "not a manifest", 12.0),
    Fault(
        "disk full on a worker",
        _fill_workers_disk,
        (*_LOST, "episode_retried"),
        _NO_SPACE,
        10.0,
        mend=lambda scene: _workers_disk(scene).make_room(),
        root=True,
    ),
    Fault("wrong version of the package", _start_other_version, _LOST, "another version", 12.0),
    Fault("clock jump", _jump_the_clock),
    Fault(
        "kill -9 of the host",
        _kill_host,
        why="no process is running",
        mend=lambda scene: scene.ground.start_host(),
        alone=True,
    ),
    Fault("SIGSTOP of the host", _stop_host, why="is stopped", mend=_resume_host, alone=True),
    Fault(
        "kill -9 of the host's policy",
        _signal(signal.SIGKILL, lambda scene: scene.ground.policy()),
        ("policy_lost",),
        "host's policy process ended",
        alone=True,
        host_acts=True,
    ),
    Fault(
        "SIGSTOP of the host's policy",
        _signal(signal.SIGSTOP, lambda scene: scene.ground.policy()),
        ("policy_lost",),
        "host's policy process did not",
        POLICY_STUCK_S + _LOADED_S,
        alone=True,
        host_acts=True,
    ),
    Fault(
        "disk full on the host",
        _fill_hosts_disk,
        (*_LOST, "disk_full"),
        _NO_SPACE,
        10.0,
        why="",
        mend=lambda scene: _hosts_disk(scene).make_room(),
        alone=True,
        root=True,
    ),
]


def faults(inference: Inference, root: bool) -> list[Fault]:
    """Returns the kinds of faults that can strike such a run."""
    host_acts = inference is Inference.host
    return [fault for fault in FAULTS if (root or not fault.root) and (host_acts or not fault.host_acts)]


def lies() -> list[Fault]:
    """Returns a kind for each lie of a worker whose account is lost, but for those that need large disks or screens."""
    told = [*LIES.values(), *(lie for lie in CONTENT.values() if not (lie.is_heavy or lie.screens))]
    return [Fault(f"lie: {lie.name}", lie=lie) for lie in told]
