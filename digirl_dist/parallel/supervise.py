"""Starts the ranks of one machine and watches them: the first that fails ends the others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from digirl_dist.child_process import ends_with_this_process, environment

_LOOK_S = 0.05
_GRACE_S = 8.0
"""How long ranks may take to end once they have been asked to."""

_Ranks = list[subprocess.Popen[bytes]]


def supervise(program: Sequence[str], variables: Sequence[Mapping[str, str]]) -> int:
    """Runs ``program`` once for each of ``variables``, which join the environment, until all have ended.

    Returns the exit status of the worst rank that ended by itself, 128 + N for signal N, as a shell tells it; when this
    process is asked to end by signal N, it ends its ranks and returns 128 + N too.
    """
    asked: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _note_in(asked))
    children: _Ranks = []
    prepare = ends_with_this_process()
    try:
        for own in variables:
            environ = {**environment(), **own}
            children.append(subprocess.Popen(program, env=environ, start_new_session=True, preexec_fn=prepare))
        worst = _watch(children, asked)
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
