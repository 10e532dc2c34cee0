"""The device agent: a small policy for touch screens."""
