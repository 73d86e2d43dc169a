"""Models in Keras on TensorFlow."""

from elasticdl.registry import Package

PACKAGE = Package(backends={"keras": "elasticdl.packages.keras.backend:BACKEND"})
