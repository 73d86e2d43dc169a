"""Ray: a job is a folder that all nodes see, and an actor keeps each of its processes."""

from elasticdl.registry import Package

_SETTINGS = "elasticdl.packages.ray.settings"

PACKAGE = Package(
    sections={"ray": f"{_SETTINGS}:RaySection"},
    launchers={"ray": f"{_SETTINGS}:LAUNCHER"},
)
