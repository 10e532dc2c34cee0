"""Puts a run together from its settings, and refuses settings that contradict each other."""
