"""Runs jobs from Python, without a shell: `elasticdl.train(...)` starts a job and returns it."""

from elasticdl.cli.interactive.job import Job, train

__all__ = ["Job", "train"]
