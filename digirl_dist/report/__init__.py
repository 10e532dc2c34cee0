"""Output for people and programs: metrics, progress, curves, animations, the report page and ``digirl-dist why``."""
