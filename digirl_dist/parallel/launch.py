"""python -m digirl_dist.parallel.launch [--nproc_per_node=P] (script.py | -m module) [arguments …]

Starts the ranks of a PyTorch program on this machine, as ``torchrun --standalone`` does, and opens no port that
another user of the machine can use: the ranks meet in a file of a private folder, not at a server. Ranks of several
machines need torchrun. The first that fails ends the others. The exit status is that of the worst rank that ended by
itself (128 + N for signal N).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from digirl_dist.child_process import ends_with_this_process, environment
from digirl_dist.exit_status import Parser, handled
from digirl_dist.parallel.failure import say
from digirl_dist.parallel.rank import Rank, store_variables, torch_variables

_LOOK_S = 0.05
_GRACE_S = 8.0
"""How long ranks may take to end once they have been asked to."""
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_ON_LOOPBACK = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}",
    "TORCH_GLOO_LAZY_INIT": "0",  # all connections are made at once, and looked at then (loopback.py)
}
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_Ranks = list[subprocess.Popen[bytes]]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; 2 for a launch that cannot be."""
    options = parser("launch", "start ranks on this machine").parse_args(argv)
    count = options.nproc_per_node
    if count < 1 or not options.program:
        wrong = f"--nproc_per_node={count} must be at least 1" if count < 1 else "there is nothing to run"
        sys.stderr.write(f"error: {wrong}; as in --nproc_per_node=2 script.py, or --nproc_per_node=2 -m module\n")
        return 2
    return launch(count, program_of(options))


def parser(prog: str, about: str) -> argparse.ArgumentParser:
    """Returns the command line of a launcher, with how many ranks it starts here and what they run."""
    made = Parser(prog=f"digirl_dist.parallel.{prog}", description=about)
    made.add_argument("--nproc_per_node", type=int, default=1, help="ranks on this machine: as many as it has GPUs")
    made.add_argument("-m", "--module", action="store_true", help="the program is a module, not a script")
    made.add_argument("program", nargs=argparse.REMAINDER, help="script.py or module, and its arguments")
    return made


def program_of(options: argparse.Namespace) -> list[str]:
    """Returns what the interpreter of each rank is given."""
    return [*(["-m"] if options.module else []), *options.program]


def launch(
    count: int, program: Sequence[str], variables: Mapping[str, str] | None = None, grace_s: float = _GRACE_S
) -> int:
    """Runs ``program`` as ``count`` ranks that meet in a private file; returns the exit status (see ``supervise``)."""
    with TemporaryDirectory(prefix="digirl-dist-ranks-") as folder:
        ranks = [Rank(k, count, k, count) for k in range(count)]
        own = {**store_variables(Path(folder) / "store"), **(variables or {})}
        shared = {**_threads(count), **_ON_LOOPBACK, **own}
        return supervise(program, [(rank, {**shared, **torch_variables(rank)}) for rank in ranks], grace_s)


def supervise(
    program: Sequence[str], ranks: Sequence[tuple[Rank, Mapping[str, str]]], grace_s: float = _GRACE_S
) -> int:
    """Runs the program once for each of ``ranks``, whose variables join the environment, to the end.

    A rank that a signal ends cannot say so itself; this process does. Returns the exit status of the worst rank that
    ended by itself, 128 + N for signal N, as a shell tells it; when this process is asked to end by signal N, it asks
    its ranks to end, kills them after ``grace_s`` or when it is asked again, and returns 128 + N too.
    """
    children: _Ranks = []
    prepare = ends_with_this_process()
    with _noted_signals() as asked:
        try:
            for _, own in ranks:
                command, environ = [sys.executable, *program], {**environment(), **own}
                children.append(subprocess.Popen(command, env=environ, start_new_session=True, preexec_fn=prepare))
            worst = _watch(children, asked)
            _tell_killed([rank for rank, _ in ranks], children, asked)
        finally:
            _end(children, asked, grace_s)
    return 128 + asked[0] if asked else worst


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Yields the signals that ask this process to end, as they come; only its main thread gets any."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    heeded = [each for each in _ENDING if is_main and signal.getsignal(each) is not signal.SIG_IGN]
    with handled(heeded, note):
        yield asked


def _watch(children: _Ranks, asked: list[int]) -> int:
    """Until all have ended, or one failed, or this process is asked to end; the worst status, as a shell tells it."""
    while not asked:
        statuses = [child.poll() for child in children]
        worst = max((code if code >= 0 else 128 - code for code in statuses if code is not None), default=0)
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


def _end(children: _Ranks, asked: list[int], grace_s: float) -> None:
    """Ask those that still run to end, and then leave nothing of any of them."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + grace_s
    while len(asked) < 2 and time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(_LOOK_S)
    for child in children:
        with suppress(ProcessLookupError):  # the group is empty
            os.killpg(child.pid, signal.SIGKILL)  # what a rank has started is in its group
        child.wait()


def _threads(ranks: int) -> dict[str, str]:
    """As torchrun has it: ranks that each take every core would slow each other down."""
    return {"OMP_NUM_THREADS": "1"} if ranks > 1 and "OMP_NUM_THREADS" not in os.environ else {}


if __name__ == "__main__":
    sys.exit(main())
