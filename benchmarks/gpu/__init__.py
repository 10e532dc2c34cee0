"""Checks of everything that computes on a GPU, each in a process of its own (``script/gpu``)."""
