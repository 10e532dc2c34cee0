"""``script/chaos --faults N --seed S``: injects N faults into a run and checks its invariants."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from chaos import hostility
from chaos.content import CONTENT
from chaos.costs import judge_content
from chaos.faults import Fault, faults, lies
from chaos.ground import LIMITS, RunContext, ground
from chaos.invariants import Invariant, judge
from chaos.keys import VICTIMS, strike_keys
from chaos.lies import LIES, Lie
from chaos.processes import command_line, eventually, processes_with
from chaos.stages import Phase
from chaos.trial import Chaos, Trial, plan
from chaos.watch import Watch
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c
from digirl_dist.settings import Inference

_FINISH_S = 150.0
_MACHINES = 3
_SHARE = 0.95
"""Of the others' episodes per second without a liar."""


def strike(
    kinds: Sequence[Fault],
    count: int,
    seed: int,
    inference: Inference,
    limits: Mapping[str, float] = LIMITS,
) -> tuple[list[Trial], list[Invariant]]:
    """Runs the plan; returns the outcome of every fault and of every invariant."""
    with ground(_MACHINES, inference, limits) as here:
        watch = Watch(here.run)
        try:
            chaos = Chaos(here, watch, seed)
            chaos.run(plan(kinds, count, seed))
            iterations = _finish(here)
        finally:
            watch.close()
        left = _left(here)
        found = judge(here.run, iterations, watch, chaos.trials, left, here.ended_by_itself)
        if any(one.broken for one in found):
            here.keep()
        return chaos.trials, found


def judge_by_lies(lies: Sequence[Lie], alone_s: float = hostility.ALONE_S) -> tuple[hostility.Verdict, list[Invariant]]:
    """Has one worker of three lie; returns what came of it, and of the invariants that hold whatever it says."""
    found: list[Invariant] = []

    def finish(here: RunContext, watch: Watch) -> None:
        judged = judge(here.run, _finish(here), watch, [], _left(here), here.ended_by_itself)
        found.extend(one for one in judged if not one.name.startswith(("slot_seconds", "every fault", "no wait")))
        if any(one.broken for one in found):
            here.keep()

    verdict = hostility.strike(lies, alone_s, finish)
    problems = [f"{one.lie.name}: {one.problem}" for one in verdict.strikes if one.problem]
    share = f"{verdict.share:.0%} of {verdict.alone:.1f} episodes/s"
    slow = [] if verdict.share >= _SHARE else [share]
    return verdict, [
        *found,
        Invariant("every liar named and out of service", f"{len(verdict.strikes)} lies", problems),
        Invariant("the others go on as fast", share, slow),
    ]


def _finish(here: RunContext) -> int:
    """Ends the run in order, then lets it finish its current iteration. Returns the number of iterations."""
    here.clock.write_text("0")
    if (status := here.end_host()) != 130:
        here.ended_by_itself.append(f"asked to end, the host ended with status {status}")
        here.kill_host()
    iterations = 1 + max(int(path.name) for path in (here.run / "checkpoints").glob("[0-9]*") if path.name.isdigit())
    here.start_host(iterations)
    if (status := here.await_host(_FINISH_S)) != 0:
        here.ended_by_itself.append(f"the last iteration ended with status {status}: {here.why()}")
        here.kill_host()
    return iterations


def _left(here: RunContext) -> list[str]:
    """Returns the run's processes that remain after the orphan time; the SSH servers do not belong to the run."""

    def running() -> list[str]:
        ours = {process.pid for machine in here.machines for process in machine.sshd.processes()}
        return [command_line(process) for process in processes_with(here.folder) if process.pid not in ours]

    eventually(lambda: not running(), LIMITS["limits.orphan_s"] + 15.0)
    return [words for words in running() if words]


def _show(trials: Sequence[Trial], invariants: Sequence[Invariant]) -> None:
    print(f"\n{'fault':32}{'count':>6}{'noticed: median':>17}{'most':>7}{'well: median':>14}{'most':>7}  verdict")
    for kind in dict.fromkeys(trial.fault for trial in trials):
        mine = [trial for trial in trials if trial.fault == kind]
        noticed = [trial.noticed_s for trial in mine if trial.noticed_s is not None]
        well = [trial.recovered_s for trial in mine if trial.recovered_s is not None]
        verdict = "FAILED" if any(trial.problem for trial in mine) else "ok"
        print(f"{kind:32}{len(mine):6}{_times(noticed, 17)}{_times(well, 14)}  {verdict}")
    print(f"\n{'invariant':45}{'checked':28}verdict")
    for one in invariants:
        print(f"{one.name:45}{one.checked:28}{f'BROKEN, {len(one.broken)} times' if one.broken else 'holds'}")
        for said in one.broken[:10]:
            print(f"    {said}")


def _times(seconds: Sequence[float], width: int) -> str:
    middle, most = (f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s") if seconds else ("-", "-")
    return middle.rjust(width) + most.rjust(7)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=25, help="how many (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="decides which fault comes when and where (default: 0)")
    parser.add_argument("--inference", type=Inference, default=Inference.worker, help="worker (default) or host")
    parser.add_argument(
        "--keys", type=int, default=0, help="so many kills of a trainer, its host and workers, and nothing else"
    )
    parser.add_argument(
        "--lies", type=int, default=0, help="so many lies of one of three workers, without other faults"
    )
    parser.add_argument(
        "--lies-of-content",
        type=int,
        nargs="?",
        const=sys.maxsize,
        default=0,
        metavar="N",
        help="lies of valid content, of one of four workers, in each phase of a run; N of them (default: all)",
    )
    parser.add_argument(
        "--phase", type=Phase, action="append", help="only in this phase: collecting, learning or idle; may be repeated"
    )
    parser.add_argument("--only", default="", help="only lies of content whose name contains this")
    options = parser.parse_args()
    end_by_signals_as_by_ctrl_c()  # or servers and small disks stay behind
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C, and so would its hosts
    started = time.monotonic()
    if options.lies_of_content:
        lies_of_content = [lie for lie in CONTENT.values() if options.only in lie.name]
        pairs = [(phase, lie) for phase in options.phase or Phase for lie in lies_of_content]
        costs = judge_content(plan(pairs, min(options.lies_of_content, len(pairs)), options.seed), options.seed)
        broken = sum(bool(problems) for _, problems in costs)
        print(f"\n{len(costs)} lies of content in {time.monotonic() - started:.0f} s, {broken} FAILED")
        return int(broken > 0)
    if options.keys:
        invariants = [one for kind in VICTIMS for one in strike_keys(kind, options.keys // 2, options.seed)]
        _show([], invariants)
        print(f"\n{options.keys} kills in {time.monotonic() - started:.0f} s")
        return int(any(one.broken for one in invariants))
    if options.lies:
        _, invariants = judge_by_lies(plan(list(LIES.values()), options.lies, options.seed))
        _show([], invariants)
        print(f"\n{options.lies} lies in {time.monotonic() - started:.0f} s")
        return int(any(one.broken for one in invariants))
    kinds = [*faults(options.inference, root=os.geteuid() == 0), *lies()]
    trials, invariants = strike(kinds, options.faults, options.seed, options.inference, hostility.HOSTILE_LIMITS)
    _show(trials, invariants)
    print(f"\n{len(trials)} faults in {time.monotonic() - started:.0f} s")
    if os.geteuid() != 0:
        print("full disks were skipped: only root can make small ones")
    return int(any(one.broken for one in invariants))


if __name__ == "__main__":
    sys.exit(main())
