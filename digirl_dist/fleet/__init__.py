"""The host's side of the workers: one worker's life, all workers' life, who runs which ticket."""
