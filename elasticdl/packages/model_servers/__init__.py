"""Model servers: they compute parts of a model for all workers (`--num_model_servers`)."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.model_servers"

PACKAGE = Package(
    needs=("frameworks",),
    sections={"model_servers": f"{_HERE}.settings:ModelServersSection"},
    roles={"modelserver": _HERE},
    features={"model_servers": f"{_HERE}.master:features_of"},
    services={"model_servers": f"{_HERE}.master:add_service"},
    row_sources={"towers": f"{_HERE}.sources:sources_of"},
)
