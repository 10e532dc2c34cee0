"""The resident program of a worker machine, its folder, and the way to it."""
