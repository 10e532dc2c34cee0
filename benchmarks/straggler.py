"""Four workers of which one is four times slower: how far an iteration is from the best that these machines can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measure import measure, sized
from benchmarks.stage import DEVICE, Machine, median, nominal_s, queue_s, rounded, show, stage, tickets
from digirl_dist.settings import LimitSettings

WORKERS, SLOTS, TICKETS, ROUNDS = sized((4, 4, 128, 3), (2, 1, 4, 1))
SLOWNESS = 4.0


def main() -> None:
    rate = SLOTS * (WORKERS - 1 + 1 / SLOWNESS)  # nominal seconds of episodes in one second
    with stage() as here:
        machines = [Machine(address, SLOTS, DEVICE) for address in here.serve(WORKERS)]
        machines[-1] = replace(machines[-1], emulator=replace(DEVICE, slowness=SLOWNESS))
        ours = here.ours("ours", machines, LimitSettings())
        ours.warm_up()
        over, seconds, tails, unknown, known = [], [], [], [], []
        for number in range(1, ROUNDS + 1):
            nominal = [nominal_s(DEVICE, ticket) for ticket in tickets(number, TICKETS)]
            _, took = ours.iteration(number, TICKETS)
            seconds.append(took)
            over.append(took / (sum(nominal) / rate))
            unknown.append(_best_s(nominal) / (sum(nominal) / rate))
            known.append(_best_s(sorted(nominal, reverse=True)) / (sum(nominal) / rate))
            ended = sorted(at for at, manifest in ours.fleet.manifests if manifest.key.iteration == number)
            tails.append(ended[-1] - ended[-SLOTS * WORKERS])
    show(
        "straggler",
        {"over_ideal": (median(over), "<=1.10")},
        {
            "over_ideal": rounded(over),
            "iterations_s": rounded(seconds),
            "queue_without_software": rounded(unknown),
            "longest_first_without_software": rounded(known),
            "last_16_episodes_s": rounded(tails),
            "tickets": TICKETS,
            "episode_mean_s": round(sum(nominal) / TICKETS, 3),
        },
    )


def _best_s(queue: Sequence[float]) -> float:
    """Returns the least seconds of a queue whose end the slow worker leaves to the others, as hindsight tells."""
    slots = [*[1.0] * SLOTS * (WORKERS - 1), *[SLOWNESS] * SLOTS]
    return min(queue_s(queue, slots, left) for left in range(len(queue)))


if __name__ == "__main__":
    measure(main, minutes=15)
