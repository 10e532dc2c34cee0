"""Four workers of which one is four times slower: how far an iteration is from the best that these machines can do."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import measure, sized
from benchmarks.stage import DEVICE, Machine, median, nominal_s, rounded, show, stage, tickets
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
        over, seconds, tails = [], [], []
        for number in range(1, ROUNDS + 1):
            nominal = [nominal_s(DEVICE, ticket) for ticket in tickets(number, TICKETS)]
            _, took = ours.iteration(number, TICKETS)
            seconds.append(took)
            over.append(took / (sum(nominal) / rate))
            ended = sorted(at for at, manifest in ours.fleet.manifests if manifest.key.iteration == number)
            tails.append(ended[-1] - ended[-SLOTS * WORKERS])
    show(
        "straggler",
        {"over_ideal": (median(over), "<=1.10")},
        {
            "over_ideal": rounded(over),
            "iterations_s": rounded(seconds),
            "last_16_episodes_s": rounded(tails),
            "tickets": TICKETS,
            "episode_mean_s": round(sum(nominal) / TICKETS, 3),
        },
    )


if __name__ == "__main__":
    measure(main, minutes=15)
