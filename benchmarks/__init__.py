"""Measured ratios, each against a baseline that is run beside it. ``script/bench`` lists them."""
