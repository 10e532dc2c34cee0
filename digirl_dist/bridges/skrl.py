"""skrl on this package's environments, in an existing process group."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

from digirl_dist.bridges.vector import RankedVector

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def wrapped(here: RankedVector) -> Any:
    """Wraps the environments for skrl, on this rank's device. Must be called before anything else imports skrl.

    skrl creates an NCCL process group on import, even without CUDA. This function therefore hides the launcher during
    the import and sets skrl's rank afterwards.
    """
    with patch.dict(os.environ, _ALONE):
        from skrl import config
        from skrl.envs.wrappers.torch import wrap_env
    ours = config.torch
    ours._rank, ours._local_rank = here.rank.rank, here.rank.local_rank
    ours._world_size = here.rank.world_size
    ours._is_distributed = here.rank.world_size > 1
    ours.device = here.device
    return wrap_env(here.envs, wrapper="gymnasium", verbose=False)
