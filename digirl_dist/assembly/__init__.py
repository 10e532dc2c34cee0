"""Builds a run from its settings, and refuses settings that contradict each other."""
