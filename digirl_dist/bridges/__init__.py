"""Adapters that give fleets and ranks to other libraries: skrl, rsl_rl, Stable-Baselines3, OpenEnv."""
