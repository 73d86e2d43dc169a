"""Models of Keras on JAX, which computes in place of TensorFlow; TensorFlow still runs `feed`."""

from elasticdl.registry import Package

PACKAGE = Package(
    needs=("frameworks", "keras"), backends={"jax": "elasticdl.packages.jax.backend:BACKEND"}
)
