"""The share of slot-time that emulators and policy work, from the push of the checkpoint until all is stored."""

from __future__ import annotations

import time
from collections import Counter

from benchmarks.measure import measure, sized
from benchmarks.stage import DEVICE, Machine, Ours, median, rounded, show, stage
from digirl_dist.settings import LimitSettings

WORKERS, SLOTS, TICKETS, ROUNDS = sized((4, 4, 128, 4), (1, 2, 4, 1))


def main() -> None:
    with stage() as here:
        machines = [Machine(address, SLOTS, DEVICE) for address in here.serve(WORKERS)]
        ours = here.ours("ours", machines, LimitSettings())
        ours.warm_up()
        shares, parts, before_tail = [], Counter[str](), []
        for number in range(1, ROUNDS + 1):
            ours.fleet.manifests.clear()
            result, seconds = ours.iteration(number, TICKETS)
            spent = Counter[str]()
            for _, manifest in ours.fleet.manifests:
                spent.update(manifest.spent)
            parts.update({name: value / (ours.slots * seconds) / ROUNDS for name, value in spent.items()})
            shares.append(sum(spent.values()) / (ours.slots * seconds))
            before_tail.append(result.busy or 0.0)
        ours.go_ahead(TICKETS)
        ahead = _ahead(ours, ROUNDS + 1)
    show(
        "busy",
        {"sync": (median(shares), ">=0.80"), "ahead": (ahead, ">=0.92")},
        {
            "iterations": rounded(shares),
            "parts": {name: round(share, 3) for name, share in parts.items()},
            "until_no_ticket_was_left": rounded(before_tail),
            "tickets": TICKETS,
        },
    )


def _ahead(ours: Ours, first: int) -> float:
    """Over several iterations, from the end of one to the end of another, as the slots never wait in between."""
    ours.iteration(first, TICKETS)
    started, before = time.monotonic(), len(ours.fleet.manifests)
    for number in range(first + 1, first + 1 + ROUNDS):
        ours.iteration(number, TICKETS)
    seconds = time.monotonic() - started
    return sum(sum(manifest.spent.values()) for _, manifest in ours.fleet.manifests[before:]) / (ours.slots * seconds)


if __name__ == "__main__":
    measure(main, minutes=15)
