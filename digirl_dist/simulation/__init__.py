"""Simulation: runs collector and worker programs on virtual time, to search for bugs and to plan fleets."""
