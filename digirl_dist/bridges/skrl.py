"""Runs skrl on our environments, in an existing process group."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

from digirl_dist.bridges.vector import RankedVector
from digirl_dist.settings.extras import extra_needed

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def wrapped(here: RankedVector) -> Any:
    """Wraps the environments for skrl, on this rank's device. Must be called before anything else imports skrl.

    On import, skrl makes a process group of NCCL, even without CUDA. So the launcher's variables are hidden from it
    meanwhile, and its rank is set afterwards. Raises SettingsError if it is not installed.
    """
    with patch.dict(os.environ, _ALONE), extra_needed("a runner of skrl", "skrl", "bridges"):
        from skrl import config
        from skrl.envs.wrappers.torch import wrap_env
    ours = config.torch
    ours._rank, ours._local_rank = here.rank.rank, here.rank.local_rank
    ours._world_size = here.rank.world_size
    ours._is_distributed = here.rank.world_size > 1
    ours.device = here.device
    return wrap_env(here.envs, wrapper="gymnasium", verbose=False)
