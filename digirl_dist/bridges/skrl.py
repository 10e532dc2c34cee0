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


def wrapped_for_jax(here: RankedVector) -> Any:
    """Does the same for skrl's agents of JAX, alone or as a rank of ``python -m digirl_dist.parallel.jax``.

    On import, skrl joins JAX's ranks by the launcher's variables; one that does not come is named by JAX. Raises
    SettingsError if JAX, Flax or skrl is not installed.
    """
    with extra_needed("skrl with JAX", "JAX, Flax and skrl", "jax"):
        import flax  # noqa: F401
        import jax
        import jax.experimental.multihost_utils  # skrl broadcasts by it and does not import it
        from skrl.envs.wrappers.jax import wrap_env
    settings: Any = jax.config
    settings.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    return wrap_env(here.envs, wrapper="gymnasium", verbose=False)
