"""Files on disk: writes and reads run folders, checkpoints, trajectories and events safely."""
