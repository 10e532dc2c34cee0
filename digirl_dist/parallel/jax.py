"""python -m digirl_dist.parallel.jax [--nproc_per_node=P …] (script.py | -m module) [arguments …]

Starts the ranks of a JAX program on this machine, as torchrun does for PyTorch: JAX itself starts no processes. Each
has JAX_LOCAL_RANK, JAX_RANK, JAX_LOCAL_WORLD_SIZE, JAX_WORLD_SIZE, JAX_COORDINATOR_ADDR and JAX_COORDINATOR_PORT set.
The first that fails ends the others. The exit status is that of the worst rank that ended by itself (128 + N for
signal N).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from digirl_dist.errors import RankError
from digirl_dist.parallel.launch import parser, program_of, supervise
from digirl_dist.parallel.loopback import free_port
from digirl_dist.parallel.rank import Coordinator, Rank, jax_variables, variables_past_proxies


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; 2 for a launch that is refused."""
    jax = parser("jax", "start the ranks of a JAX program")
    jax.add_argument("--nnodes", type=int, default=1, help="machines that take part")
    jax.add_argument("--node_rank", type=int, default=0, help="which of the machines this is, from 0")
    jax.add_argument("--coordinator_address", metavar="HOST:PORT", help="where rank 0 is; one machine needs none")
    options = jax.parse_args(argv)
    try:
        ranks, coordinator = _ranks(options), _coordinator(options)
    except RankError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    shared = variables_past_proxies(os.environ, coordinator)
    return supervise(program_of(options), [(rank, {**shared, **jax_variables(rank, coordinator)}) for rank in ranks])


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


if __name__ == "__main__":
    sys.exit(main())
