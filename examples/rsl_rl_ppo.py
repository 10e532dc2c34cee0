"""PPO of rsl_rl on the emulators of ``digirl_dist.train``, alone or one process per GPU. Arguments are settings.

torchrun --nproc_per_node=2 examples/rsl_rl_ppo.py emulator.id=Pendulum-v1 bsize=8
"""

from __future__ import annotations

import sys

from digirl_dist.bridges.rsl_rl import RankedRunner
from digirl_dist.bridges.vector import ranked_vector

STEPS, ITERATIONS = 32, 4
NETWORK = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "elu"}
NOISE = {"class_name": "GaussianDistribution", "init_std": 1.0}

with ranked_vector(["emulator.id=Pendulum-v1", *sys.argv[1:]]) as here:
    runner = RankedRunner(
        here,
        {
            "num_steps_per_env": STEPS,
            "save_interval": ITERATIONS,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**NETWORK, "distribution_cfg": NOISE},
            "critic": NETWORK,
            "algorithm": {"class_name": "PPO", "num_learning_epochs": 4, "num_mini_batches": 4, "learning_rate": 3e-4},
        },
    )
    runner.learn(ITERATIONS)
    weights = sum(float(parameter.detach().sum()) for parameter in runner.alg.get_policy().parameters())
    print(f"rank {here.rank.rank} of {here.rank.world_size}: the policy's weights add up to {weights:.6f}")
