"""Slurm: a job is a folder that all nodes see, and its processes are tasks of job arrays."""
