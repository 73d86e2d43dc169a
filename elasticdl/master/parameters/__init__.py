"""The holders of a job's parameters: ps replicas, workers, or the store of a job in one process."""
