"""``digirl-dist doctor``: checks whether a run would start; names each defect on host or workers and its remedy."""
