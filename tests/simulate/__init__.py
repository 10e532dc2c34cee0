"""Simulation: runs the real collector and worker programs on virtual time, to search for bugs."""
