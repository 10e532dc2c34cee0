"""What people and programs look at: events, metrics, progress, curves and the report page."""
