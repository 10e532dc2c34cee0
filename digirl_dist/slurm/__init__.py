"""Workers on nodes of a Slurm cluster: jobs that hold a node each, and sessions that ``srun`` carries."""
