"""Sets the threads and the device of JAX, which takes them only before it starts."""

from __future__ import annotations

import os

from elasticdl.errors import ModelError
from elasticdl.packages.keras.threads import compute_with

_THREADS = ("NPROC", "PJRT_NPROC")  # of XLA's pool on the CPU, in this release and before


def compute_by_jax(num_threads: int, device: str | None) -> None:
    """Have JAX compute with so many threads on a device, and TensorFlow, for `feed`, on the CPU.

    Args:
        num_threads: The number of threads.
        device: `cpu` or `cuda:N`; None: where JAX wants to.

    Raises:
        ModelError: There is no such device.
    """
    # XLA reads these variables when JAX is imported or starts, so they are set before.
    for name in _THREADS:
        os.environ.setdefault(name, str(num_threads))
    # Otherwise the first worker on a GPU takes most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import tensorflow as tf

    # `feed` runs in TensorFlow, which would otherwise take memory of the GPU.
    compute_with(num_threads, "cpu" if tf.config.list_physical_devices("GPU") else None)

    if device is None:
        return
    kind, _, number = device.partition(":")
    try:
        found = jax.devices("cpu" if kind == "cpu" else "cuda")
    except RuntimeError:
        found = []
    if int(number or 0) >= len(found):
        there = ", ".join(str(one) for one in jax.devices())
        raise ModelError(
            f"--worker_devices: expected {device} on the machine of each worker, JAX "
            f"{jax.__version__} finds {there}; name what is there, or leave the flag out"
        )
    jax.config.update("jax_default_device", found[int(number or 0)])
