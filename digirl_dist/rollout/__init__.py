"""Runs episodes on the emulator slots of one machine."""
