"""Vectorised Gymnasium environments with one queue of episodes, in this process or on a Ray cluster."""

from digirl_dist.vec_env.config import EpisodeCfg, RayDistributionCfg, VecEnvConfig, gymnasium_env
from digirl_dist.vec_env.env import EpisodeFailedError, ProcessLostError, VecEnv

Env = VecEnv
"""The same, by the name that InternUtopia gives it."""

__all__ = [
    "Env",
    "EpisodeCfg",
    "EpisodeFailedError",
    "ProcessLostError",
    "RayDistributionCfg",
    "VecEnv",
    "VecEnvConfig",
    "gymnasium_env",
]
