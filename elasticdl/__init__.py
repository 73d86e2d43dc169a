"""Elastic training of deep models: nothing that dies stops a job or loses a record."""

from elasticdl.job import Mode

__all__ = ["Mode"]
