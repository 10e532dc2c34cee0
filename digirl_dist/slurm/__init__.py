"""Workers on a Slurm cluster: submits jobs of one node each, and opens sessions with ``srun``."""
