"""Ranks: which one this process is, on which device it computes, and what the ranks of a launch exchange."""
