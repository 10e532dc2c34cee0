"""``digirl-dist view``: shows runs, episodes and workers in the browser, from a loopback port or one file."""
