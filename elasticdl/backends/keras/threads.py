"""How many threads TensorFlow computes with, which can be said only before it starts."""

from __future__ import annotations

import logging
import os

import tensorflow as tf

log = logging.getLogger(__name__)


def compute_with(num_threads: int) -> None:
    """Have TensorFlow compute with so many threads, and run a few operations beside each other."""
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
