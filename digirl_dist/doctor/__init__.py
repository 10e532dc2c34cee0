"""``digirl-dist doctor`` checks whether a run would start, and ``setup`` installs on workers what it needs."""
