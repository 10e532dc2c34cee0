"""python -m digirl_dist.parallel.jax [--nproc_per_node=P …] (script.py | -m module) [arguments …]

Starts the ranks of a JAX program on this machine, as torchrun does for PyTorch: JAX itself starts no processes. Each
has JAX_LOCAL_RANK, JAX_RANK, JAX_LOCAL_WORLD_SIZE, JAX_WORLD_SIZE, JAX_COORDINATOR_ADDR and JAX_COORDINATOR_PORT set.
The first that fails ends the others. The exit status is that of the worst rank that ended by itself (128 + N for
signal N).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from digirl_dist.child_process import environment
from digirl_dist.errors import RankError
from digirl_dist.parallel.free_port import free_port
from digirl_dist.parallel.rank import Coordinator, Rank, jax_variables

_LOOK_S = 0.05
_GRACE_S = 8.0
"""How long ranks may take to end once they have been asked to."""

_Ranks = list[subprocess.Popen[bytes]]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; 2 for a launch that is refused."""
    options = _parser().parse_args(argv)
    try:
        ranks, coordinator = _ranks(options), _coordinator(options)
    except RankError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    program = [sys.executable, *(["-m"] if options.module else []), *options.program]
    asked: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _note_in(asked))
    children: _Ranks = []
    try:
        for rank in ranks:
            variables = jax_variables(rank, coordinator)
            children.append(subprocess.Popen(program, env=environment() | variables, start_new_session=True))
        worst = _watch(children, asked)
    finally:
        _end(children)
    return 128 + asked[0] if asked else worst


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="digirl_dist.parallel.jax", description="start the ranks of a JAX program")
    parser.add_argument("--nnodes", type=int, default=1, help="machines that take part")
    parser.add_argument("--nproc_per_node", type=int, default=1, help="ranks on each: as many as it has GPUs")
    parser.add_argument("--node_rank", type=int, default=0, help="which of the machines this is, from 0")
    parser.add_argument("--coordinator_address", metavar="HOST:PORT", help="where rank 0 is; one machine needs none")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, not a script")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="script.py or module, and its arguments")
    return parser


def _ranks(options: argparse.Namespace) -> list[Rank]:
    """Returns the ranks of this machine. Raises RankError."""
    nodes, each, node = options.nnodes, options.nproc_per_node, options.node_rank
    if nodes < 1 or each < 1:
        raise RankError(f"--nnodes={nodes} and --nproc_per_node={each} must be at least 1")
    if not 0 <= node < nodes:
        raise RankError(f"--node_rank={node} is out of range: with --nnodes={nodes} it is 0 to {nodes - 1}")
    if not options.program:
        raise RankError("there is nothing to run; end the line with a script.py, or -m and a module")
    return [Rank(node * each + local, nodes * each, local, each) for local in range(each)]


def _coordinator(options: argparse.Namespace) -> Coordinator:
    """Returns the given address, or a free port if there is one machine. Raises RankError."""
    if options.coordinator_address:
        return Coordinator.parsed(options.coordinator_address)
    if options.nnodes > 1:
        raise RankError("several machines need --coordinator_address=HOST:PORT, the address of the first")
    return Coordinator("127.0.0.1", free_port())


def _note_in(asked: list[int]) -> Callable[[int, FrameType | None], None]:
    return lambda number, _: asked.append(number)


def _watch(children: _Ranks, asked: list[int]) -> int:
    """Waits until all have ended, one failed, or this process is asked to end; returns the worst status so far."""
    while not asked:
        statuses = [child.poll() for child in children]
        worst = max((_status(code) for code in statuses if code is not None), default=0)
        if worst or None not in statuses:
            return worst
        time.sleep(_LOOK_S)
    return 0


def _status(code: int) -> int:
    """Returns the status as a shell would."""
    return code if code >= 0 else 128 - code


def _end(children: _Ranks) -> None:
    """Asks those that still run to end, then kills what is left of every process group."""
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


if __name__ == "__main__":
    sys.exit(main())
