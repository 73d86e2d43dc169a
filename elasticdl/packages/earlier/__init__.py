"""ElasticDL 0.x: its model files are trained, and its flags are answered with today's."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.earlier"

PACKAGE = Package(
    modules={"elasticdl.compat.earlier": f"{_HERE}.modules"},
    model_files={"earlier": f"{_HERE}.model_files:MODEL_FILES"},
    other_flags={"ElasticDL 0.x": f"{_HERE}.flags:FLAGS"},
)
