"""Names in a model file that were meant for a job, but that no job would read."""

from elasticdl.registry import Package

PACKAGE = Package(checks={"model names": "elasticdl.packages.model_names.check:check_model_file"})
