"""Models in PyTorch: the backend, the layers with tables, and clipping for optimizers."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.torch"

PACKAGE = Package(
    needs=("frameworks",),
    backends={"torch": f"{_HERE}.backend:BACKEND"},
    other_names={"torch": f"{_HERE}.other_names:NAMES"},
    checks={"torch": f"{_HERE}.checks:check"},
    script_frameworks={"torch": f"{_HERE}.own_loops:LOOPS"},
    modules={
        "elasticdl.layers.torch": f"{_HERE}.layers",
        "elasticdl.optimizers.torch": f"{_HERE}.clipping",
    },
)
