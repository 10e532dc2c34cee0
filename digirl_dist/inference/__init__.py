"""The policy on the host: acts for the emulators of all workers, in batches, in its own process."""
