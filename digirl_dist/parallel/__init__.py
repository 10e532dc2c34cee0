"""Ranks: which one this process is, its device, and exchanges between the ranks of a launch."""
