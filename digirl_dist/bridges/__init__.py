"""Adapters for other trainers and environments: skrl, rsl_rl, Stable-Baselines3, TRL, SkyRL, verifiers, OpenEnv."""
