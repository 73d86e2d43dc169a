"""Advice on a job that runs: what is unusual, a model that overfits or diverges, more replicas."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.advice"

PACKAGE = Package(
    features={"advice": f"{_HERE}.adviser:features_of"},
    advisers={"advice": f"{_HERE}.adviser:JobAdviser"},
    kinds={
        "anomaly": f"{_HERE}.events:Anomaly",
        "overfitting": f"{_HERE}.events:Overfitting",
    },
)
