"""One of two ranks that learn from what a liar sent: ``python -m tests.trainer.learning_ranks ALGORITHM FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.group import GroupLimits, joined
from digirl_dist.parallel.peers import ALONE, Peers, SharedRows
from digirl_dist.parallel.rank import own_rank
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.joint import JointTrainer, follow
from tests.trainer.test_extreme_content import ALL, LIES, honest, learn, lied
from tests.trainer.test_inprocess import Forgetful

name, folder, rank = sys.argv[1], Path(sys.argv[2]), own_rank(os.environ)
store = Store(folder / "trajectories")


def trainer(peers: Peers) -> InProcessTrainer:
    return InProcessTrainer(Forgetful, ALL[name], Checkpoints(folder / "checkpoints"), 60, 4, peers)


with telling(rank), joined(rank, "cpu", GroupLimits()) as group:
    member = trainer(SharedRows(group))
    if rank.is_first:
        lead = JointTrainer(member, group, store, lambda: trainer(ALONE))
        updates = learn(lead, folder, [lied(0, LIES["everything"]), honest(1)])
        told = [[one.worker for one in update.refused] for update in updates]
        (folder / "refused.json").write_text(json.dumps(told))
    else:
        follow(member, group, store, 600.0)
