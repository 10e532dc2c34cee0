"""The host's side of the workers: their connections, installation, pushes and pulls."""
