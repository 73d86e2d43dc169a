"""Curves, parameters and models of a job in TensorBoard, MLflow and Weights & Biases."""

from elasticdl.registry import Package

_BEGIN = "elasticdl.packages.trackers.begin"

PACKAGE = Package(
    sections={"trackers": "elasticdl.packages.trackers.settings:TrackersSection"},
    trackers={name: f"{_BEGIN}:{name}" for name in ("tensorboard", "mlflow", "wandb")},
)
