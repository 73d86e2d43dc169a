"""All-reduce: workers that have the dense parameters, and average their gradients in a ring."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.all_reduce"

PACKAGE = Package(
    rings={"all_reduce": f"{_HERE}.join:join"},
    kinds={
        "world": f"{_HERE}.events:WorldClosed",
        "world restored": f"{_HERE}.events:WorldRestored",
    },
    worlds={"all_reduce": f"{_HERE}.worlds:WorkerWorlds"},
)
