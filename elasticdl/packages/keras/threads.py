"""Sets the threads and the device of TensorFlow, which takes them only before it starts."""

from __future__ import annotations

import logging
import os

import tensorflow as tf

from elasticdl.errors import ModelError

log = logging.getLogger(__name__)


_MODEL_FILE = "the model file starts TensorFlow when it is imported"
_MODEL_FILE_REMEDY = "make tensors inside the functions"


def compute_with(
    num_threads: int,
    device: str | None = None,
    early: str = _MODEL_FILE,
    remedy: str = _MODEL_FILE_REMEDY,
) -> None:
    """Have TensorFlow compute with so many threads, and run a few operations beside each other.

    Args:
        num_threads: The number of threads of one operation.
        device: `cpu` or `cuda:N`; None: where TensorFlow wants to.
        early: The code that started TensorFlow, for the message if it runs already.
        remedy: The advice of that message.

    Raises:
        ModelError: There is no such device, or TensorFlow has taken all of them already.
    """
    if device is not None:
        _compute_on(device, early, remedy)
    inter = int(os.environ.get("TF_NUM_INTEROP_THREADS", "2"))
    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    except RuntimeError:  # it has started
        found = tf.config.threading.get_intra_op_parallelism_threads()
        if found != num_threads:
            log.warning(
                "%s, before elasticdl can have it compute with %d threads: %s, or set "
                "TF_NUM_INTRAOP_THREADS=%d",
                early,
                num_threads,
                remedy,
                num_threads,
            )


def _compute_on(device: str, early: str, remedy: str) -> None:
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
            f"--worker_devices={device}: {early}, which takes all GPUs then: {remedy} ({error})"
        ) from error
