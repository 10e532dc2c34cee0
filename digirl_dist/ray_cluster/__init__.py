"""Workers as actors of a Ray cluster. Only this package and ``vec_env`` import Ray, and only on demand."""
