"""An iteration's collection, beside the recipes of DigiRL and DistRL.

DigiRL waits for all episodes of an iteration, and so do we beside it. DistRL takes the first that come; beside it we
collect one iteration ahead (``streamed``), so that no slot waits for the last episodes of the one before.

Everything that is waited for (a reset of 10 s and a step of 3 s, DigiRL's pauses, the time limits of all, DistRL's
poll of 10 s) is scaled by 0.1, and so is DigiRL's cold start. What software costs beside that is not, on any side.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path
from statistics import mean

from benchmarks.baselines.digirl import DigiRL
from benchmarks.baselines.distrl import DistRL
from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import Machine, Stage, median_ratio, nominal_s, rounded, show, stage, tickets
from digirl_dist.settings import LimitSettings, RehearsalSettings

SCALE = sized(0.1, 0.005)
WORKERS, SLOTS, TICKETS, ROUNDS = sized((4, 4, 32, 3), (1, 2, 4, 1))
WEIGHT = sized((4, 250_000), (4, 100))  # a policy of 4 MB
DEVICE = RehearsalSettings(
    reset_s=10 * SCALE, reset_sigma=0.4, step_s=3 * SCALE, step_sigma=0.5, steps=sized(10, 3), steps_sigma=0.5
)
LIMITS = sized(LimitSettings(reset_s=60 * SCALE, step_s=30 * SCALE), LimitSettings())
HANGS = 0.001  # per step, which is one episode in a hundred


def main() -> None:
    with stage() as here:
        recipes = ("ours", "streamed", "digirl", "distrl")
        faulty = {name: _machines(here, here.folder / f"faults-{name}") for name in recipes}
        ours = here.ours("ours", faulty["ours"], LIMITS, WEIGHT)
        streamed = here.ours("streamed", faulty["streamed"], LIMITS, WEIGHT)
        smooth = here.ours("smooth", _machines(here, None), LIMITS, WEIGHT)
        digirl = DigiRL(here.folder / "digirl", faulty["digirl"], SCALE, light=False, weight=WEIGHT)
        light = DigiRL(here.folder / "light", _machines(here, None), SCALE, light=True, weight=WEIGHT)
        distrl = DistRL(here.folder / "distrl", faulty["distrl"], SCALE, WEIGHT)
        here.stack.callback(distrl.close)
        with waiting_for("the processes of DistRL"):
            distrl.start()
        ours.warm_up()
        smooth.warm_up()
        streamed.warm_up()
        seconds: dict[str, list[float]] = {}
        for number in range(1, ROUNDS + 1):
            wanted = tickets(number, TICKETS)
            seconds.setdefault("ours", []).append(ours.iteration(number, TICKETS)[1])
            with waiting_for(f"iteration {number} of DistRL"):
                took_s = distrl.iteration(number, tickets(number, 4 * TICKETS), TICKETS)
            seconds.setdefault("distrl", []).append(took_s)
            with waiting_for(f"iteration {number} of DigiRL"):
                seconds.setdefault("digirl", []).append(digirl.iteration(wanted))
            seconds.setdefault("smooth", []).append(smooth.iteration(number, TICKETS)[1])
            with waiting_for(f"iteration {number} of DigiRL without its pauses"):
                seconds.setdefault("light", []).append(light.iteration(wanted))
        # without a pause between its iterations; the first one is begun late, and those after it early
        seconds["streamed"] = [streamed.iteration(number, TICKETS, ahead=1)[1] for number in range(ROUNDS + 1)][1:]
        hangs = {name: len(list((here.folder / f"faults-{name}").glob("*"))) for name in faulty}
    values = {
        "vs_digirl": (mean(seconds["digirl"]) / mean(seconds["ours"]), ">=5"),
        "vs_distrl": (mean(seconds["distrl"]) / mean(seconds["streamed"]), ">=2.5"),
        "vs_light_no_faults": (median_ratio(seconds["light"], seconds["smooth"]), ">=2.3"),
    }
    detail = {f"{name}_s": rounded(each) for name, each in seconds.items()}
    queue = [_queue_s(number) for number in range(1, ROUNDS + 1)]
    busy = [_busy_s(number) for number in range(1, ROUNDS + 1)]
    detail["queue_without_software_s"] = rounded(queue)
    detail["always_busy_s"] = rounded(busy)
    detail["at_most"] = rounded(
        [
            mean(seconds["digirl"]) / mean(queue),
            mean(seconds["distrl"]) / mean(busy),
            median_ratio(seconds["light"], queue),
        ]
    )
    detail["vs_distrl_not_streamed"] = rounded([mean(seconds["distrl"]) / mean(seconds["ours"])])
    cold = {"cold_starts_unscaled_s": rounded(digirl.cold_starts_s + light.cold_starts_s)}
    note = (
        "with hangs: ratios of the mean, as a hang is rare; without: the median of pairs. at_most: the three ratios if "
        "nothing but the devices took time and nothing hung, from one queue (streamed: with every slot always busy)"
    )
    show("collect", values, {**detail, **cold, "hangs": hangs, "scale": SCALE, "tickets": TICKETS, "note": note})


def _queue_s(iteration: int) -> float:
    """Returns the seconds of all episodes without hangs, in their order, if only the devices take any.

    The next one goes to the slot that is free first.
    """
    free = [0.0] * (WORKERS * SLOTS)
    for each in tickets(iteration, TICKETS):
        heapq.heapreplace(free, free[0] + nominal_s(DEVICE, each))
    return max(free)


def _busy_s(iteration: int) -> float:
    """Returns the seconds of all episodes without hangs, if every slot acts until the last of them ends."""
    return sum(nominal_s(DEVICE, each) for each in tickets(iteration, TICKETS)) / (WORKERS * SLOTS)


def _machines(here: Stage, faults: Path | None) -> list[Machine]:
    """With ``faults`` each emulator hangs now and then, at the same steps of the same tickets in every recipe."""
    device = DEVICE if faults is None else replace(DEVICE, hang_rate=HANGS, faults_once_in=str(faults))
    return [Machine(address, SLOTS, device) for address in here.serve(WORKERS)]


if __name__ == "__main__":
    measure(main, minutes=45)
