"""Processes that work together: which of them this one is, on which device, and what they tell each other."""
