"""Learning that takes as long as collecting: how much faster iterations follow each other with collect_ahead=1."""

from __future__ import annotations

import time
from itertools import pairwise

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import DEVICE, Machine, Ours, median, rounded, show, stage
from digirl_dist.settings import LimitSettings

WORKERS, SLOTS, TICKETS, ROUNDS = sized((4, 4, 48, 3), (1, 2, 4, 1))


def main() -> None:
    with stage() as here:
        machines = [Machine(address, SLOTS, DEVICE) for address in here.serve(WORKERS)]
        by_turns = here.ours("by-turns", machines, LimitSettings())
        by_turns.warm_up()
        update_s = median([by_turns.iteration(number, TICKETS)[1] for number in (1, 2)])
        one_by_one = _rounds(by_turns, 10, update_s)
        by_turns.close()
        ahead = here.ours("ahead", machines, LimitSettings())
        ahead.warm_up()
        ahead.go_ahead(TICKETS)
        overlapped = _rounds(ahead, 10, update_s)
    show(
        "overlap",
        {"speedup": (median(one_by_one) / median(overlapped), ">=1.7")},
        {"iterations_s": rounded(one_by_one), "ahead_s": rounded(overlapped), "update_s": round(update_s, 3)},
    )


def _rounds(ours: Ours, first: int, update_s: float) -> list[float]:
    """Seconds from one update's end to the next one's; the first round, in which nothing was ahead, is left out."""
    ends = []
    for number in range(first, first + ROUNDS + 1):
        ours.iteration(number, TICKETS)
        with waiting_for("an update that takes as long as an iteration"):
            time.sleep(update_s)  # the host learns: on a GPU, and not on the cores that the emulators use
        ends.append(time.monotonic())
    return [later - earlier for earlier, later in pairwise(ends)]


if __name__ == "__main__":
    measure(main, minutes=15)
