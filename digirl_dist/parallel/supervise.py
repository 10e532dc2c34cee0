"""Starts the ranks of one machine and watches them: the first that fails ends the others."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from digirl_dist.child_process import ends_with_this_process, environment
from digirl_dist.exit_status import Parser
from digirl_dist.parallel.failure import say
from digirl_dist.parallel.rank import Rank

_LOOK_S = 0.05
_GRACE_S = 8.0
"""How long ranks may take to end once they have been asked to."""

_Ranks = list[subprocess.Popen[bytes]]


def parser(prog: str, about: str) -> argparse.ArgumentParser:
    """Returns the command line of a launcher, with how many ranks it starts here and what they run."""
    made = Parser(prog=f"digirl_dist.parallel.{prog}", description=about)
    made.add_argument("--nproc_per_node", type=int, default=1, help="ranks on this machine: as many as it has GPUs")
    made.add_argument("-m", "--module", action="store_true", help="the program is a module, not a script")
    made.add_argument("program", nargs=argparse.REMAINDER, help="script.py or module, and its arguments")
    return made


def supervise(options: argparse.Namespace, ranks: Sequence[tuple[Rank, Mapping[str, str]]]) -> int:
    """Runs the program that ``options`` name once for each of ``ranks``, whose variables join the environment, to the
    end. A rank that a signal ends cannot say so itself; this process does.

    Returns the exit status of the worst rank that ended by itself, 128 + N for signal N, as a shell tells it; when this
    process is asked to end by signal N, it ends its ranks and returns 128 + N too.
    """
    program = [sys.executable, *(["-m"] if options.module else []), *options.program]
    asked: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _note_in(asked))
    children: _Ranks = []
    prepare = ends_with_this_process()
    try:
        for _, own in ranks:
            environ = {**environment(), **own}
            children.append(subprocess.Popen(program, env=environ, start_new_session=True, preexec_fn=prepare))
        worst = _watch(children, asked)
        _tell_killed([rank for rank, _ in ranks], children, asked)
    finally:
        _end(children)
    return 128 + asked[0] if asked else worst


def _note_in(asked: list[int]) -> Callable[[int, FrameType | None], None]:
    return lambda number, _: asked.append(number)


def _watch(children: _Ranks, asked: list[int]) -> int:
    """Until all have ended, or one failed, or this process is asked to end; the worst status so far."""
    while not asked:
        statuses = [child.poll() for child in children]
        worst = max((_status(code) for code in statuses if code is not None), default=0)
        if worst or None not in statuses:
            return worst
        time.sleep(_LOOK_S)
    return 0


def _tell_killed(ranks: Sequence[Rank], children: _Ranks, asked: list[int]) -> None:
    for rank, child in zip(ranks, children, strict=True):
        if not asked and child.returncode is not None and child.returncode < 0:
            say(rank, f"was ended by {_name_of(-child.returncode)}\n")


def _name_of(number: int) -> str:
    """Returns a signal's name, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status(code: int) -> int:
    """As a shell tells it."""
    return code if code >= 0 else 128 - code


def _end(children: _Ranks) -> None:
    """Ask those that still run to end, and then leave nothing of any of them."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(_LOOK_S)
    for child in children:
        try:
            os.killpg(child.pid, signal.SIGKILL)  # what a rank has started is in its group
        except ProcessLookupError:
            pass  # the group is empty
        child.wait()
