"""Weak scaling from one worker to sixteen with emulators that only wait: what of sixteen times the rate is there?"""

from __future__ import annotations

from benchmarks.measure import measure, sized
from benchmarks.stage import DEVICE, Machine, median, rounded, show, stage
from digirl_dist.settings import LimitSettings

WORKERS, SLOTS, TICKETS_PER_SLOT, ROUNDS = sized((16, 4, 8, 2), (2, 1, 2, 1))


def main() -> None:
    rates: dict[int, list[float]] = {1: [], WORKERS: []}
    with stage() as here:
        machines = [Machine(address, SLOTS, DEVICE) for address in here.serve(WORKERS)]
        fleets = {count: here.ours(f"with-{count}", machines[:count], LimitSettings()) for count in rates}
        for fleet in fleets.values():
            fleet.warm_up()
        for number in range(1, ROUNDS + 1):
            for count, fleet in fleets.items():
                wanted = count * SLOTS * TICKETS_PER_SLOT
                fleet.fleet.manifests.clear()
                seconds = fleet.iteration(number, wanted)[1]
                device = sum(manifest.seconds for _, manifest in fleet.fleet.manifests)
                rates[count].append(device / seconds)
    efficiency = [many / (WORKERS * one) for one, many in zip(rates[1], rates[WORKERS], strict=True)]
    show(
        "scaling",
        {"efficiency": (median(efficiency), ">=0.85")},
        {
            "pairs": rounded(efficiency),
            "episode_seconds_per_second": {str(count): rounded(each) for count, each in rates.items()},
            "tickets_per_slot": TICKETS_PER_SLOT,
            "note": "the rate is in seconds of episodes per second, since the tickets differ in length",
        },
    )


if __name__ == "__main__":
    measure(main, minutes=15)
