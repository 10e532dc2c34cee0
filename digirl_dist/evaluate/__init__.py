"""Evaluates policies: lists of evaluation jobs, distributed over the ranks of a launch."""
