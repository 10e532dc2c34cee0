"""Feeds what strangers may write, mutated by fixed seeds, to everything that reads it: ``script/fuzz``."""
