"""Inference: answers the action requests of emulators in batches, on a worker or for all of them on the host."""
