"""The policy on the host: acts for emulators on all workers, in batches, in a process of its own."""
