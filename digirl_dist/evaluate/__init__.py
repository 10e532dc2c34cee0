"""Measuring policies: lists of evaluation jobs, spread over the ranks of a launch."""
