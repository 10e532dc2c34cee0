"""Everything that lies on a disk: runs, checkpoints, trajectories, events, and writing them safely."""
