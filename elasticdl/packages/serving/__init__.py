"""Exports that go on while a job trains, and a process that answers with their newest version."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.serving"

PACKAGE = Package(
    commands={"serve": f"{_HERE}.command:serve", "exports": f"{_HERE}.command:exports"},
    sections={"exports": f"{_HERE}.settings:ExportsSection"},
    features={"exports": f"{_HERE}.exports:features_of"},
    model_built={"exports": f"{_HERE}.program:model_built"},
    kinds={
        "version exported": f"{_HERE}.events:VersionExported",
        "export failed": f"{_HERE}.events:ExportFailed",
    },
)
