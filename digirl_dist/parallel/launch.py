"""python -m digirl_dist.parallel.launch [--nproc_per_node=P] (script.py | -m module) [arguments …]

Starts the ranks of a PyTorch program on this machine, as ``torchrun --standalone`` does, and opens no port that
another user of the machine can use: the ranks meet in a file of a private folder, not at a server. Ranks of several
machines need torchrun. The first that fails ends the others. The exit status is that of the worst rank that ended by
itself (128 + N for signal N).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from digirl_dist.parallel.rank import Rank, store_variables, torch_variables
from digirl_dist.parallel.supervise import parser, supervise

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_ON_LOOPBACK = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}",
    "TORCH_GLOO_LAZY_INIT": "0",  # all connections are made at once, and looked at then (loopback.py)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; 2 for a launch that cannot be."""
    options = parser("launch", "start ranks on this machine").parse_args(argv)
    count = options.nproc_per_node
    if count < 1 or not options.program:
        wrong = f"--nproc_per_node={count} must be at least 1" if count < 1 else "there is nothing to run"
        sys.stderr.write(f"error: {wrong}; as in --nproc_per_node=2 script.py, or --nproc_per_node=2 -m module\n")
        return 2
    with TemporaryDirectory(prefix="digirl-dist-ranks-") as folder:
        ranks = [Rank(k, count, k, count) for k in range(count)]
        shared = {**_threads(count), **_ON_LOOPBACK, **store_variables(Path(folder) / "store")}
        return supervise(options, [(rank, {**shared, **torch_variables(rank)}) for rank in ranks])


def _threads(ranks: int) -> dict[str, str]:
    """As torchrun has it: ranks that each take every core would slow each other down."""
    return {"OMP_NUM_THREADS": "1"} if ranks > 1 and "OMP_NUM_THREADS" not in os.environ else {}


if __name__ == "__main__":
    sys.exit(main())
