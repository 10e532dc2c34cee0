"""``digirl-dist view``: runs, episodes and workers in the browser, from a loopback port or in one file."""
