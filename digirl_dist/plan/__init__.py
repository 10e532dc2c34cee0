"""``digirl-dist plan``: forecasts what a fleet would give, from measured or stated figures."""
