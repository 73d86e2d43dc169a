"""Models in Keras on TensorFlow: the backend, layers, preprocessing and an optimizer."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.keras"

PACKAGE = Package(
    needs=("frameworks",),
    backends={"keras": f"{_HERE}.backend:BACKEND"},
    model_files={"keras": f"{_HERE}.deferred:MODEL_FILES"},
    other_flags={"Keras": f"{_HERE}.other_names:FLAGS"},
    other_names={"keras": f"{_HERE}.other_names:NAMES"},
    script_frameworks={"keras": f"{_HERE}.own_loops:LOOPS"},
    modules={
        "elasticdl.layers": f"{_HERE}.layers",
        "elasticdl.optimizers": f"{_HERE}.group_ftrl",
        "elasticdl.preprocessing": f"{_HERE}.preprocessing",
        "elasticdl.preprocessing.earlier": f"{_HERE}.preprocessing.earlier",
        "elasticdl.preprocessing.tabular": f"{_HERE}.preprocessing.tabular",
    },
)
