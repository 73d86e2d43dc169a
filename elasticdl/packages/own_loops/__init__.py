"""A user's own training loop on several workers: `elasticdl run` and `elasticdl.controller`."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.own_loops"

PACKAGE = Package(
    commands={"run": f"{_HERE}.command:run_script"},
    modules={"elasticdl.controller": f"{_HERE}.controller"},
    programs={"script": f"{_HERE}.worker:run_program"},
)
