"""Training with emulators on every rank: each has its own replay and policy, and shares gradients alone."""
