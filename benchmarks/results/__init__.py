"""Learning results: real runs over several seeds, their curves and their tables. See script/results."""
