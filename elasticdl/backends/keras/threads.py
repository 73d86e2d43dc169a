"""With how many threads, and where, TensorFlow computes; it can be told only before it starts."""

from __future__ import annotations

import logging
import os

import tensorflow as tf

from elasticdl.errors import ModelError

log = logging.getLogger(__name__)


def compute_with(num_threads: int, device: str | None = None) -> None:
    """Have TensorFlow compute with so many threads, and run a few operations beside each other.

    Args:
        num_threads: Of one operation.
        device: `cpu` or `cuda:N`; None: where TensorFlow wants to.

    Raises:
        ModelError: There is no such device, or TensorFlow has taken all of them already.
    """
    if device is not None:
        _compute_on(device)
    inter = int(os.environ.get("TF_NUM_INTEROP_THREADS", "2"))
    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    except RuntimeError:  # it has started
        found = tf.config.threading.get_intra_op_parallelism_threads()
        if found != num_threads:
            log.warning(
                "the model file starts TensorFlow when it is imported, before elasticdl can have "
                "it compute with %d threads: make tensors inside the functions, or set "
                "TF_NUM_INTRAOP_THREADS=%d",
                num_threads,
                num_threads,
            )


def _compute_on(device: str) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    kind, _, number = device.partition(":")
    if kind != "cpu" and int(number) >= len(gpus):
        there = [f"cuda:{k} ({gpu.name})" for k, gpu in enumerate(gpus)]
        raise ModelError(
            f"--worker_devices: expected {device} on the machine of each worker, TensorFlow "
            f"{tf.__version__} finds cpu and {', '.join(there) or 'no GPU'}; name what is there, "
            "or leave the flag out"
        )
    chosen = [] if kind == "cpu" else [gpus[int(number)]]
    try:
        tf.config.set_visible_devices(chosen, "GPU")
        for gpu in chosen:  # otherwise the first worker on a GPU takes all of its memory
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:  # it has started
        raise ModelError(
            f"--worker_devices={device}: the model file starts TensorFlow when it is imported, "
            f"which takes all GPUs then: make tensors inside the functions ({error})"
        ) from error
