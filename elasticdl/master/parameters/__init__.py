"""Whoever holds the parameters of a job: ps replicas, or the one store of a job in one process."""
