"""``digirl-dist setup``: installs on worker machines what a run needs."""
