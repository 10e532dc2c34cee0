"""Vectorised Gymnasium environments with one queue of episodes, in this process or in processes of a Ray cluster."""

from digirl_dist.vec_env.config import EpisodeCfg, RayDistributionCfg, VecEnvConfig, gymnasium_env
from digirl_dist.vec_env.env import ProcessLostError, VecEnv

__all__ = ["EpisodeCfg", "ProcessLostError", "RayDistributionCfg", "VecEnv", "VecEnvConfig", "gymnasium_env"]
