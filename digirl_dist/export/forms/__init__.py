"""The formats that runs are exported to: one module each, named as in ``digirl-dist export --to NAME``."""
