"""Faults on purpose: a run under a seeded plan of real faults, and the invariants that must hold all the same."""
