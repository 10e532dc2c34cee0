"""What runs next to the emulators: slots, the resident program of a worker machine, and the way to it."""
