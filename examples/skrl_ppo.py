"""PPO of skrl on the emulators of ``digirl_dist.train``, alone or one process per GPU. Arguments are settings.

torchrun --nproc_per_node=2 examples/skrl_ppo.py emulator.id=CartPole-v1 bsize=8
python -m digirl_dist.parallel.jax --nproc_per_node=2 examples/skrl_ppo.py --ml_framework=jax emulator.id=CartPole-v1

Two nodes: the second command on both, with --nnodes=2 --coordinator_address=<ip>:5555 and --node_rank=0 or 1.
"""

from __future__ import annotations

import sys
from typing import Any

from digirl_dist.bridges.skrl import wrapped, wrapped_for_jax
from digirl_dist.bridges.vector import ranked_vector

STEPS, ITERATIONS = 32, 4


def model(kind: str) -> dict[str, Any]:
    network = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "tanh"}]
    return {"class": kind, "network": network, "output": "ACTIONS" if kind != "DeterministicMixin" else "ONE"}


settings = [word for word in sys.argv[1:] if word != "--ml_framework=jax"]
by_jax = settings != sys.argv[1:]
with ranked_vector(settings) as here:
    env = wrapped_for_jax(here) if by_jax else wrapped(here)  # before anything else of skrl
    if by_jax:
        from skrl.utils.runner.jax import Runner
    else:
        from skrl.utils.runner.torch import Runner

    experiment = {"directory": str(here.folder), "experiment_name": "skrl", "write_interval": STEPS}
    runner = Runner(
        env,
        {
            "seed": 42,
            "models": {"separate": True, "policy": model("CategoricalMixin"), "value": model("DeterministicMixin")},
            "memory": {"class": "RandomMemory", "memory_size": STEPS},
            "agent": {"class": "PPO", "rollouts": STEPS, "learning_rate": 3e-4, "experiment": experiment},
            "trainer": {"class": "SequentialTrainer", "timesteps": STEPS * ITERATIONS, "headless": True},
        },
    )
    runner.run("train")
    policy = runner.agent.models["policy"]
    if by_jax:
        import jax

        weights = sum(float(part.sum()) for part in jax.tree.leaves(policy.state_dict.params))
    else:
        weights = sum(float(parameter.detach().sum()) for parameter in policy.parameters())
    print(f"rank {here.rank.rank} of {here.rank.world_size}: the policy's weights add up to {weights:.6f}")
