"""The loop of a vectorised environment over Ray: python examples/vec_env.py [processes] [environments in each]"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from digirl_dist.vec_env import EpisodeCfg, RayDistributionCfg, VecEnv, VecEnvConfig, gymnasium_env

proc_num, env_num = (int(word) for word in (*sys.argv[1:], "2", "2")[:2])

config = VecEnvConfig(
    env=gymnasium_env("CartPole-v1", max_episode_steps=50),
    env_num=env_num,
    task_configs=[EpisodeCfg(seed=seed) for seed in range(8)],
).distribute(
    RayDistributionCfg(
        proc_num=proc_num,
        gpu_num_per_proc=0,  # CartPole needs none; can be omitted where each process shall have one
    )
)


def get_finish_status(obs: Any) -> bool:
    if obs is None:
        return True
    return bool(np.abs(obs[2]) > 0.15)  # the pole leans too far


env = VecEnv(config)
obs, _ = env.reset()
# degree of parallelism
dop = len(obs)

action = 1
no_more_episode = False

start = time.time()
while True:
    obs_list, _, _, _, _ = env.step(action=[action for _ in range(dop)])
    finish_status_list = [get_finish_status(obs) for obs in obs_list]

    if no_more_episode and all(finish_status_list):
        break

    if not no_more_episode and True in finish_status_list:
        env_ids = [env_id for env_id, finish_status in enumerate(finish_status_list) if finish_status]
        obs, _ = env.reset(env_ids)
        if None in obs:
            no_more_episode = True
end = time.time()
print(f"Total time:{round(end - start)} s")

env.close()
