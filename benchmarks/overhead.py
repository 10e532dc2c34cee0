"""The fixed cost of a warm iteration: what collecting takes when the episodes themselves take no time."""

from __future__ import annotations

import time

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import Machine, median, rounded, show, stage
from digirl_dist.settings import LimitSettings, RehearsalSettings, SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address


def main() -> None:
    workers, slots, rounds = sized((4, 4, 15), (1, 1, 2))
    emulator = RehearsalSettings(reset_s=0, step_s=0, steps=1, steps_sigma=0)
    with stage() as here:
        machines = [Machine(address, slots, emulator) for address in here.serve(workers)]
        ours = here.ours("ours", machines, LimitSettings())
        ours.warm_up()
        seconds = [ours.iteration(number, workers * slots)[1] for number in range(1, rounds + 1)]
        commands = _commands(machines[0].address, 30)
    detail = {"workers": workers, "slots": slots, "episodes": workers * slots, "iterations_s": rounded(seconds)}
    show(
        "overhead",
        {"iteration_s": (median(seconds), "<=0.5"), "command_s": (median(commands), "<=0.02")},
        {**detail, "includes": "push of a new checkpoint, leases, one-step episodes, pulls, fsync of each, the store"},
    )


def _commands(address: Address, count: int) -> list[float]:
    """Seconds of one command each, one after the other on a connection that stands."""
    seconds = []
    with waiting_for(f"{count} commands"), connect(address, SshSettings()) as connection:
        for _ in range(count + 1):
            started = time.monotonic()
            connection.run(["true"])
            seconds.append(time.monotonic() - started)
    return seconds[1:]


if __name__ == "__main__":
    measure(main, minutes=10)
