"""The faults that a simulated run may suffer: each strikes one machine, or the host, and most pass by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from digirl_dist.errors import EmulatorError
from digirl_dist.protocol.messages import EpisodeManifest, EpisodeReady
from digirl_dist.tasks import Key, Task, Ticket
from simulate.behaviour import Fate
from simulate.link import Way
from simulate.machine import Machine
from simulate.program import RUN

if TYPE_CHECKING:
    from simulate.run import SimulatedRun

Strike = Callable[["SimulatedRun", Machine, float], None]


@dataclass(frozen=True)
class Fault:
    """Strikes ``worker`` at the second ``at``, or where the n-th message of a kind arrives (``on``)."""

    number: int
    kind: str
    worker: int
    at: float
    seconds: float
    on: tuple[str, int] | None = None
    before: bool = False
    """Whether it strikes before the message is acted on."""


def _kill_program(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    machine.program.kill()


def _reboot(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """What was not flushed is damaged."""
    _damage_spool(run, machine, seconds)
    machine.program.kill()
    KINDS["cut"](run, machine, seconds)


def _lose_folder(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    for kept in (machine.program.ready, machine.program.blobs, machine.program.strays):
        kept.clear()
    machine.program.kill()


def _link(way: Way, *directions: str) -> Strike:
    """Returns a fault of the link in these directions."""

    def strike(run: SimulatedRun, machine: Machine, seconds: float) -> None:
        for direction in directions:
            setattr(machine.link, direction, way)
        run.later(seconds, machine.link.mend)

    return strike


def _behaviour(name: str, faulty: object, sound: object) -> Strike:
    """Returns a fault by which a field of the machine's ``Behaviour`` has another value for a while."""

    def strike(run: SimulatedRun, machine: Machine, seconds: float) -> None:
        setattr(machine.program.behaviour, name, faulty)
        run.later(seconds, lambda: setattr(machine.program.behaviour, name, sound))

    return strike


def _is_chosen(ticket: Ticket) -> bool:
    return (ticket.index + ticket.attempt) % 2 == 0


def _fails_at_times(ticket: Ticket) -> Fate:
    return "fails" if (ticket.index + ticket.attempt) % 3 == 0 else "ends"


def _break_connection(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    for wire in list(machine.link.standing):
        wire.break_now()


def _delay(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    before, machine.link.jitter_s = machine.link.jitter_s, 2.0
    run.later(seconds, lambda: setattr(machine.link, "jitter_s", before))


def _fill_disk(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    machine.program.disk_is_full = True
    run.later(seconds, lambda: setattr(machine.program, "disk_is_full", False))


def _fill_host_disk(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    run.host_disk_is_full(True)
    run.later(seconds, lambda: run.host_disk_is_full(False))


def _kill_host_at_its_disk(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """At one of its next writes, just before or just after it."""
    run.kill_host_at_write(1 + int(7 * seconds) % 13, seconds)


def _stumble(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """The host meets a defect of its own as the next episode lands."""
    run.disk.store.stumbles_at = int(7 * seconds) % 2


def _suspend_host(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    run.fleet.suspend(seconds)


def _jump_clock(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """The machine sleeps, as a laptop does, and its monotonic clock goes on."""
    machine.program.ahead_s += seconds


def _damage_spool(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    machine.program.damaged |= set(machine.program.ready)


def _leave_stray(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    machine.program.strays["stray"] = "stray.json is not a manifest"
    machine.program.kill()


def _alter_blob(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    machine.program.altered |= {blob for blob in machine.program.blobs if blob.startswith("a")}


def _slow_down(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    run.slowness[machine.spec.name] = 8.0
    run.later(seconds, lambda: run.slowness.pop(machine.spec.name, None))


def _repeat(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """Announces all that lies ready once more."""
    _announce_all(machine)
    run.later(seconds, lambda: _announce_all(machine))


def _forge(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """Announces episodes of tickets that it was not leased; their rows are of another ticket, or do not exist."""
    if machine.program.stopped:  # it says nothing, and nobody fetches what it never announces
        return
    other = Ticket(0, 999, Task("other"), 1, 0)
    for number in range(3):
        name = f"forged-{number}"
        manifest = EpisodeManifest(RUN, Key(0, number), 0, 0, name, 100, "ab", 0, 1.0, 0.0, {})
        if number:
            machine.program.ready[name] = manifest, other
        _announce(machine, manifest)


def _deliver_stale(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """An episode of a ticket that no iteration has any more."""
    if machine.program.stopped:
        return
    stale = EpisodeManifest(RUN, Key(0, 500), 0, 0, "stale", 100, "ab", 0, 1.0, 0.0, {})
    machine.program.ready["stale"] = stale, Ticket(0, 500, Task("t"), 1, 0)
    _announce(machine, stale)


def _lie_about_length(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """Its episodes took, and are, as old as can be said."""
    for name, (manifest, ticket) in list(machine.program.ready.items()):
        absurd = msgspec.structs.replace(manifest, seconds=1e9, age_s=1e9, spent={"step": 1e9})
        machine.program.ready[name] = absurd, ticket
        _announce(machine, absurd)


def _break_agent(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """A worker that is out for good; one at least is spared."""
    if machine is not run.machines[0] and machine.program.slots is not None:
        machine.program.core.act_failed(EmulatorError("the agent raises"))


def _release(run: SimulatedRun, machine: Machine, seconds: float) -> None:
    """The roster no longer names it, and does so again later; one worker at least is spared."""
    if machine is not run.machines[0] and machine.spec.name in run.fleet.workers:
        run.fleet.release(machine.spec.name)
        run.later(seconds, lambda: run.join(machine))


def _announce_all(machine: Machine) -> None:
    for manifest, _ in list(machine.program.ready.values()):
        _announce(machine, manifest)


def _announce(machine: Machine, manifest: EpisodeManifest) -> None:
    if machine.program.say is not None and not machine.program.stopped:
        machine.program.say(EpisodeReady(manifest))


_BOTH_WAYS = "to_host", "to_program"

KINDS: dict[str, Strike] = {
    "kill_program": _kill_program,
    "reboot": _reboot,
    "lose_folder": _lose_folder,
    "cut": _link(Way.STALLED, *_BOTH_WAYS),
    "swallow": _link(Way.SWALLOWS, *_BOTH_WAYS),
    "half_open_to_program": _link(Way.SWALLOWS, "to_program"),
    "half_open_to_host": _link(Way.SWALLOWS, "to_host"),
    "stalled_to_program": _link(Way.STALLED, "to_program"),
    "break_connection": _break_connection,
    "delay": _delay,
    "stop_program": lambda run, machine, seconds: machine.program.freeze(seconds, stopped=True),
    "stick_program": lambda run, machine, seconds: machine.program.freeze(seconds),
    "fill_disk": _fill_disk,
    "fill_host_disk": _fill_host_disk,
    "kill_host": lambda run, machine, seconds: run.kill_host(seconds),
    "kill_host_at_its_disk": _kill_host_at_its_disk,
    "stumble": _stumble,
    "suspend_host": _suspend_host,
    "jump_clock": _jump_clock,
    "damage_spool": _damage_spool,
    "leave_stray": _leave_stray,
    "alter_blob": _alter_blob,
    "hang_emulators": _behaviour("fate", lambda ticket: "hangs", lambda ticket: "ends"),
    "fail_emulators": _behaviour("fate", _fails_at_times, lambda ticket: "ends"),
    "mishear": _behaviour("mishears", _is_chosen, lambda ticket: False),
    "forget": _behaviour("forgets", _is_chosen, lambda ticket: False),
    "slow_down": _slow_down,
    "claim": _behaviour("claims", [Key(0, 77), Key(0, 0), Key(1, 1), Key(0, 0, "evaluate")], []),
    "repeat": _repeat,
    "forge": _forge,
    "deliver_stale": _deliver_stale,
    "lie_about_length": _lie_about_length,
    "break_agent": _break_agent,
    "release": _release,
}


def strike(run: SimulatedRun, fault: Fault) -> None:
    """Lets the fault happen now."""
    machine = run.machines[fault.worker]
    run.world.trace("fault", f"{replace(fault, at=run.world.now)}".encode())
    KINDS[fault.kind](run, machine, fault.seconds)
