"""A rank that meets the others, says so, and waits for the file that ends it: meeting.py FOLDER"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.group import Group, GroupLimits, joined
from digirl_dist.parallel.rank import own_rank


def work(group: Group, folder: Path) -> None:
    rank = group.rank.rank
    (folder / f"sum{rank}").write_text(str(float(group.sum(torch.tensor([1.0 + rank])))))
    if rank == 0:
        while not (folder / "end").exists():
            time.sleep(0.05)
    group.gate("end together")
    (folder / f"again{rank}").write_text(str(float(group.sum(torch.tensor([1.0 + rank])))))


if __name__ == "__main__":
    with telling(own_rank(os.environ)), joined(own_rank(os.environ), "cpu", GroupLimits(60, 30, 60)) as meeting:
        work(meeting, Path(sys.argv[1]))
