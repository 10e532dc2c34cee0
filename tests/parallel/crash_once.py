"""A rank of torchrun, of which rank 1 dies in the first attempt, after all have met."""

import os
import signal
import sys

import torch

from digirl_dist.parallel.group import GroupLimits, joined
from digirl_dist.parallel.rank import own_rank

rank, attempt = own_rank(os.environ), os.environ["TORCHELASTIC_RESTART_COUNT"]
with joined(rank, "cpu", GroupLimits(start_s=60.0, exchange_s=60.0, gate_s=60.0)) as group:
    group.sum(torch.ones(1))
    if rank.rank == 1 and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    group.gate("the end")
    sys.stdout.write(f"attempt {attempt}: rank {rank.rank} adds up {float(group.sum(torch.ones(1)))}\n")
