"""Output: metrics, progress, curves, animations, the report page and ``digirl-dist why``."""
