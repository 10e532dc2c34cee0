"""The environments of ``digirl_dist.train`` for runners of other libraries: skrl and rsl_rl."""
