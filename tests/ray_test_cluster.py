"""A real Ray cluster of two nodes on this machine, started once for all tests that need one."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from digirl_dist.ray_cluster.connect import RAY_NICENESS

NODE_CPUS, NODE_GPUS = 4, 1
_OBJECT_STORE_BYTES = 80 * 1024 * 1024


@functools.cache
def shared_cluster() -> Any:
    """The program is in it from now on; Ray ends it when the program ends."""
    os.environ[RAY_NICENESS] = "0"  # else the other test processes starve the actors
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(2):
        # Nobody reads what a log monitor tells, which is a tenth of what a test process computes.
        add_node(cluster, num_cpus=NODE_CPUS, num_gpus=NODE_GPUS, include_log_monitor=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    return cluster


def add_node(cluster: Any, **resources: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # A node claims GPUs that are not there, but none where the variable hides all of them, as it does in tests.
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return cluster.add_node(include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **resources)
