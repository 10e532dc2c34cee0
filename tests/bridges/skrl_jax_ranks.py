"""One of the ranks in which skrl's PPO of JAX learns on our emulators, or all of them in one process.

skrl_jax_ranks.py FOLDER [as one process]. Each rank leaves what it found in FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from digirl_dist.bridges.skrl import wrapped_for_jax
from digirl_dist.bridges.vector import ranked_vector

UPDATES, STEPS, ENVIRONMENTS, RANKS = 50, 8, 4, 2
CORRIDOR = ["emulator.id=null", "emulator.entry_point=examples.corridor:Corridor", "seed=7"]


def model(kind: str, output: str) -> dict[str, Any]:
    network = [{"name": "net", "input": "OBSERVATIONS", "layers": [8], "activations": "tanh"}]
    return {"class": kind, "network": network, "output": output}


def runner_of(env: Any, folder: Path) -> Any:
    from skrl.utils.runner.jax import Runner

    experiment = {"directory": str(folder), "experiment_name": "skrl", "write_interval": 0, "checkpoint_interval": 8}
    models = {
        "separate": True,
        "policy": model("CategoricalMixin", "ACTIONS"),
        "value": model("DeterministicMixin", "ONE"),
    }
    ppo = {"class": "PPO", "rollouts": STEPS, "mini_batches": 1, "learning_epochs": 1, "learning_rate": 1e-3}
    trainer = {"class": "SequentialTrainer", "timesteps": STEPS, "headless": True, "close_environment_at_exit": False}
    memory = {"class": "RandomMemory", "memory_size": STEPS}
    agent = {**ppo, "experiment": experiment}
    return Runner(env, {"seed": 42, "models": models, "memory": memory, "agent": agent, "trainer": trainer})


def learn(agent: Any, ranks: list[int]) -> list[float]:
    """Makes updates from the rows of these ranks, whose actions differ; returns the policy's and the value's weights.

    skrl normalises advantages on each rank alone, so states and rewards are the same on all.
    """
    import jax

    for name in ("policy", "value"):  # skrl loads the weights alone
        optimizer, params = getattr(agent, f"{name}_optimizer"), getattr(agent, name).state_dict.params
        setattr(agent, f"{name}_optimizer", optimizer.replace(state=optimizer.transformation.init(params)))
    rng = np.random.default_rng(3)
    for _ in range(UPDATES):
        observations = rng.standard_normal((STEPS, ENVIRONMENTS, 2)).astype(np.float32)
        rewards = rng.standard_normal((STEPS, ENVIRONMENTS, 1)).astype(np.float32)
        actions = rng.integers(2, size=(STEPS, RANKS, ENVIRONMENTS, 1))
        ended = np.ones((ENVIRONMENTS * len(ranks), 1), np.int8)
        for step in range(STEPS):
            seen = np.concatenate([observations[step] for _ in ranks])
            taken = np.concatenate([actions[step, rank] for rank in ranks])
            _, chosen = agent.policy.act({"observations": seen, "states": None, "taken_actions": taken}, role="policy")
            values, _ = agent.value.act({"observations": seen, "states": None}, role="value")
            agent.memory.add_samples(
                observations=seen,
                states=None,
                actions=taken,
                rewards=np.concatenate([rewards[step] for _ in ranks]),
                terminated=ended,
                truncated=0 * ended,
                log_prob=chosen["log_prob"],
                values=values,
            )
        agent._current_next_observations, agent._current_next_states = seen, None
        agent.update(timestep=0, timesteps=0)
    parts = [*jax.tree.leaves(agent.policy.state_dict.params), *jax.tree.leaves(agent.value.state_dict.params)]
    return [float(number) for part in parts for number in np.asarray(part).ravel()]


def main() -> None:
    folder, is_one = Path(sys.argv[1]), len(sys.argv) > 2
    count = ENVIRONMENTS * (RANKS if is_one else 1)
    with ranked_vector([*CORRIDOR, f"bsize={count}", f"save_path={folder}"]) as here:
        env, rank = wrapped_for_jax(here), here.rank.rank
        runner = runner_of(env, folder)
        first = np.asarray(here.envs.reset()[0]).tolist()
        if not is_one:
            runner.run("train")  # acts in the corridor and saves
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("rank 0 has saved")
        [checkpoint] = folder.rglob("agent_*.pickle")
        runner.agent.load(str(checkpoint))
        weights = learn(runner.agent, list(range(RANKS)) if is_one else [rank])
        name = "one.json" if is_one else f"rank{rank}.json"
        (folder / name).write_text(json.dumps({"weights": weights, "first": first}))


if __name__ == "__main__":
    main()
