"""The public Python interface: fleets to drive, runs to read, policies that act. ``digirl_dist`` exports it."""
