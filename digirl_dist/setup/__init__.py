"""``digirl-dist setup``: brings worker machines to where a run can start."""
