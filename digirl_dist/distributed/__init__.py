"""Training where each rank has emulators, a replay and a policy of its own, and only gradients are shared."""
