"""Your own classes: finds them by import path, and packs them for workers."""
