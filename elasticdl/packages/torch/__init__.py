"""Models in PyTorch: the backend, the layers with tables, and clipping for optimizers."""

from elasticdl.registry import Package

PACKAGE = Package(
    backends={"torch": "elasticdl.packages.torch.backend:BACKEND"},
    script_frameworks={"torch": "elasticdl.packages.torch.own_loops:LOOPS"},
    modules={
        "elasticdl.layers.torch": "elasticdl.packages.torch.layers",
        "elasticdl.optimizers.torch": "elasticdl.packages.torch.clipping",
    },
)
