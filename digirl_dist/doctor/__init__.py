"""``digirl-dist doctor``: would a run start? What is wrong on the host or a worker, and the remedy."""
