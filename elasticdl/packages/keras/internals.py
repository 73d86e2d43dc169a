"""The names of Keras that it does not export and that we use; read from Keras 3.15.

Each of these may move or change with a release of Keras. The tests of this room use all of them, so
a release that breaks one is found there.
"""

from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.callbacks.monitor_callback import MonitorCallback
from keras.src.losses.loss import squeeze_or_expand_to_same_rank
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator
from keras.src.trainers.compile_utils import (
    CompileLoss,
    get_metric,
    is_binary_or_sparse_categorical,
)
from keras.src.utils.naming import reset_uids, to_snake_case

__all__ = [
    "GLOBAL_SEED_GENERATOR",
    "CompileLoss",
    "MonitorCallback",
    "get_keras_mask",
    "get_metric",
    "get_stateless_scope",
    "global_seed_generator",
    "global_state",
    "is_binary_or_sparse_categorical",
    "reset_uids",
    "set_keras_mask",
    "squeeze_or_expand_to_same_rank",
    "to_snake_case",
]
