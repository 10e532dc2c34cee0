"""``digirl-dist setup``: installs on worker machines whatever a run needs there."""
