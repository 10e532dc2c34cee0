"""Files on disk: run folders, checkpoints, trajectories, events, and safe ways to write and read them."""
