"""``digirl-dist serve``: a fleet's rollouts over HTTP, and the door of servers that are for one user alone."""
