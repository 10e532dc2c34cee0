"""The user's own classes: found by import path, and packed for their way to a worker."""
