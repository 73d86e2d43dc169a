"""`elasticdl data`, and the look at the data before a job trains."""

from elasticdl.registry import Package

_FOLDER = "elasticdl.packages.data_tools"

PACKAGE = Package(
    commands={"data": f"{_FOLDER}.command:data"},
    looks={"data": f"{_FOLDER}.look:look_at_data"},
)
