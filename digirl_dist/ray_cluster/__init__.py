"""Workers as actors of a Ray cluster. Ray is imported here and in ``vec_env`` only, and only when it is asked for."""
