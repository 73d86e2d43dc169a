"""Slurm: a job is a folder that all nodes see, and its processes are tasks of job arrays."""

from elasticdl.registry import Package

_SETTINGS = "elasticdl.packages.slurm.settings"

PACKAGE = Package(
    sections={"slurm": f"{_SETTINGS}:SlurmSection"},
    launchers={"slurm": f"{_SETTINGS}:LAUNCHER"},
)
