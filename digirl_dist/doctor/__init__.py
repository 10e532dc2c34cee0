"""``digirl-dist doctor``: checks whether a run would start, and names each defect with its remedy."""
