"""A worker lies: ``Liar`` tells one lie; ``strike`` has one of three tell one after the other.

The run and the other workers must not suffer for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.ground import LIMITS, RunContext, ground
from chaos.lies import Lie
from chaos.machine import Machine
from chaos.watch import Event, Watch
from digirl_dist.settings import Inference

HOSTILE_LIMITS = {
    **LIMITS,
    "ssh.stall_s": 4.0,
    "limits.start_s": 8.0,
    "limits.lease_s": 12.0,
    "limits.quarantine_s": 10.0,
    "limits.worker_offences": 2,
}
"""Limits short enough that what takes as long as a limit allows is over within ``_OUT_S`` as well."""
_NAMED_S, _OUT_S = 10.0, 30.0
_BOUNDED_S = 8.0
"""How long a lie is told that the host believes within bounds."""
_JOIN_S = 12.0
"""Time in which a worker connects and its program starts, on two busy cores."""
ALONE_S = 20.0
"""How long the others are alone, before every tenth lie: what a machine can do changes in the course of a run."""
_ALONE_EVERY = 10
_START_S = 150.0
_LIAR = -1
"""Which of the machines lies."""


@dataclass
class Strike:
    """The outcome of one lie. Times are seconds from when the liar could connect; None: not within the limit."""

    lie: Lie
    named_s: float | None = None
    out_s: float | None = None
    is_fatal: bool = False
    """Whether the host gave the worker up for good."""
    episodes: int = 0
    """Episodes that landed meanwhile, and for how long that was."""
    seconds: float = 0.0

    @property
    def problem(self) -> str:
        if self.lie.is_bounded:
            return ""
        missing = [word for word, at in (("named", self.named_s), ("out of service", self.out_s)) if at is None]
        return f"not {' or '.join(missing)} in time" if missing else ""


@dataclass
class Verdict:
    """``alone`` and ``beside`` are the others' episodes per second without the liar, and while it lied."""

    strikes: Sequence[Strike]
    alone: float
    beside: float

    @property
    def share(self) -> float:
        return self.beside / self.alone if self.alone else 0.0


def strike(lies: Sequence[Lie], alone_s: float, finish: Callable[[RunContext, Watch], object]) -> Verdict:
    """Has the liar tell each lie; ``finish`` gets the run at its end."""
    with ground(3, Inference.worker, HOSTILE_LIMITS) as here:
        watch = Watch(here.run)
        try:
            verdict = _Hostility(here, watch, alone_s).run(lies)
            finish(here, watch)
        finally:
            watch.close()
    return verdict


class Liar:
    """A machine that may lie."""

    def __init__(self, here: RunContext, watch: Watch, machine: Machine) -> None:
        self._here = here
        self._watch = watch
        self._machine = machine

    def tell(self, lie: Lie) -> Strike:
        """Lies until that is noticed, or for as long as it may take; the machine goes on lying until ``stop``."""
        self._machine.told.unlink(missing_ok=True)
        self._machine.hostile.write_text(lie.name)
        self._machine.relay.cut()
        result, began = Strike(lie), time.monotonic()
        told_s, told = _JOIN_S, False
        while (since := time.monotonic() - began) < _limit_s(lie, told_s) and None in (result.named_s, result.out_s):
            time.sleep(0.3)
            if not told and self._machine.told.exists():
                told_s, told = since, True
            is_late = told and since > told_s + _stands_s(lie) + _NAMED_S
            if result.named_s is None and not is_late and self.is_named(since):
                result.named_s = since
            if result.out_s is None and (out := self.out(began)) is not None:
                result.out_s, result.is_fatal = out.at - began, out.kind == "worker_lost"
        return result

    def stop(self) -> None:
        self._machine.hostile.write_text("")

    def is_named(self, since: float) -> bool:
        """Returns whether ``digirl-dist why`` tells what is wrong with the worker, and began to since the strike."""
        lines = self._here.why().splitlines()
        start = next((n for n, line in enumerate(lines) if line.startswith(f"worker {self._machine.name}:")), None)
        if start is None:
            return False
        mine = [lines[start]]
        for line in lines[start + 1 :]:
            if not line.startswith("  "):
                break
            mine.append(line)
        told = [
            float(at[1])
            for line in mine
            if (at := re.search(r"last trouble: ([0-9.]+) s before(?!.*connection broke)", line))
        ]
        return "<-- the host waits" in mine[0] or any(at < since for at in told)

    def out(self, began: float) -> Event | None:
        def is_out(event: Event) -> bool:
            fatal = event.kind == "worker_lost" and event.content.get("fatal")
            return event.of(self._machine.name) and bool(fatal or event.kind == "worker_out_of_service")

        return self._watch.first(began, is_out)


def _stands_s(lie: Lie) -> float:
    """Returns for how long an honest worker might do as the lie does."""
    return HOSTILE_LIMITS.get(lie.stands or ("ssh.stall_s" if lie.send is not None else ""), 0.0)


def _limit_s(lie: Lie, told_s: float) -> float:
    """Returns when the liar must be out of service at the latest, told or not."""
    return _BOUNDED_S if lie.is_bounded else told_s + _stands_s(lie) + _OUT_S


class _Hostility:
    """A run with one liar."""

    def __init__(self, here: RunContext, watch: Watch, alone_s: float) -> None:
        self._here = here
        self._watch = watch
        self._alone_s = alone_s
        self._machine: Machine = here.machines[_LIAR]
        self._liar = Liar(here, watch, self._machine)

    def run(self, lies: Sequence[Lie]) -> Verdict:
        self._here.start_host()
        if self._watch.wait(0.0, lambda event: event.kind == "episode", _START_S) is None:
            raise TimeoutError(f"the run did not start:\n{self._here.why()}")
        strikes, alone = [], []
        for number, lie in enumerate(lies):
            if number % _ALONE_EVERY == 0:
                alone.append(self._alone())
            strikes.append(self._strike(lie))
            print(f"{number + 1:4d} {lie.name}: {_words(strikes[-1])}", flush=True)
            self._here.keep_host()
        self._liar.stop()
        return Verdict(strikes, _rate(alone), _rate([(one.episodes, one.seconds) for one in strikes]))

    def _alone(self) -> tuple[int, float]:
        """Returns how many episodes landed while the liar could not connect, and in how many seconds."""
        self._machine.relay.refuse(True)
        self._machine.relay.cut()
        time.sleep(2.0)  # until the others have its tickets
        began = time.monotonic()
        time.sleep(self._alone_s)
        result = self._landed(began), time.monotonic() - began
        self._machine.relay.refuse(False)
        return result

    def _strike(self, lie: Lie) -> Strike:
        began = time.monotonic()
        result = self._liar.tell(lie)
        if result.out_s is not None and not result.is_fatal:
            time.sleep(max(0.0, began + result.out_s + HOSTILE_LIMITS["limits.quarantine_s"] - time.monotonic()))
        result.seconds = time.monotonic() - began
        result.episodes = self._landed(began)
        if result.is_fatal:
            self._restart(began + (result.out_s or 0.0))
        return result

    def _restart(self, since: float) -> None:
        """Restarts a host that gave the worker up for good."""
        self._here.end_host()
        self._here.start_host()
        self._watch.wait(since + 3.0, lambda event: event.kind == "episode", 60.0)

    def _landed(self, since: float) -> int:
        """Counts the episodes of the others."""
        events, liar = self._watch.events[:], self._machine.name
        return sum(one.kind == "episode" and one.at >= since and not one.of(liar) for one in events)


def _rate(counted: Sequence[tuple[int, float]]) -> float:
    """Returns how many in a second."""
    seconds = sum(each for _, each in counted)
    return sum(count for count, _ in counted) / seconds if seconds else 0.0


def _words(strike: Strike) -> str:
    named, out = ("never" if at is None else f"{at:.1f} s" for at in (strike.named_s, strike.out_s))
    rate = strike.episodes / strike.seconds if strike.seconds else 0.0
    verdict = strike.problem or ("believed within bounds" if strike.lie.is_bounded else "ok")
    return f"named {named}, out of service {out}, {rate:.1f} episodes/s: {verdict}"
