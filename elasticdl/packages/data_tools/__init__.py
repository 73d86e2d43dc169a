"""`elasticdl data`, and the look at the data before a job trains."""

from elasticdl.registry import Package

_FOLDER = "elasticdl.packages.data_tools"

PACKAGE = Package(
    commands={"data": f"{_FOLDER}.command:data"},
    modules={
        "elasticdl.data.example": f"{_FOLDER}.example",
        "elasticdl.preprocessing.statistics": f"{_FOLDER}.model_statistics",
    },
    checks={"statistics": f"{_FOLDER}.statistics:check_statistics"},
    looks={"data": f"{_FOLDER}.look:look_at_data"},
)
