"""Evaluation jobs: measures a list of policies, distributed over the ranks of a launch."""
