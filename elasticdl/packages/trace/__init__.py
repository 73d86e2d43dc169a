"""Traces: chosen records as they were trained, in Parquet files (`--trace`)."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.trace"

PACKAGE = Package(
    sections={"trace": f"{_HERE}.settings:TraceSection"},
    step_watches={"trace": f"{_HERE}.tracer:watches_of"},
)
