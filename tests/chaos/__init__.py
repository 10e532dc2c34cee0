"""Chaos tests: a run under a seeded plan of real faults, and the invariants that must hold regardless."""
