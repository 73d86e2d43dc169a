"""What a Keras model on TensorFlow has, whether its steps are traced or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from elasticdl.backends.base import Float32, Minibatch
from elasticdl.packages.keras.computation import Computes
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.function import as_predicted
from elasticdl.packages.keras.model.gradient import LossGradient
from elasticdl.packages.keras.model.lookups import Pull
from elasticdl.packages.keras.model.placed import PlacedModel
from elasticdl.packages.keras.model.state import VariableRules


class OnTensorFlow(Computes):
    """The part of a computation that each on TensorFlow has.

    Args:
        placed: The model.
        rules: The rule by which training changes each state variable.
        gradient: Its gradient; None if the model file has no loss.
        loss: `loss` of the model file.

    Attributes:
        tables, need_parameters: See `Lookups`.
        newest, rules: See `KerasComputation`.
    """

    tables: Sequence[int]

    def __init__(
        self,
        placed: PlacedModel,
        rules: VariableRules,
        gradient: LossGradient | None,
        loss: Callable[..., object] | None,
    ) -> None:
        super().__init__()
        self._placed = placed
        self.rules = rules
        self._gradient = gradient
        self._user_loss = loss
        self._pull: Pull | None = None

    def taken(self, minibatch: Minibatch) -> KerasMinibatch:
        """Return a minibatch as it is computed on."""
        return KerasMinibatch.of(minibatch)

    def set_lookup(self, pull: Pull) -> None:
        """Give the lookup of rows and parameters, for ids that depend on parameters."""
        self._pull = pull

    def predict(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> object:
        """Return the outputs as arrays."""
        outputs, _ = self.infer(self.taken(minibatch), rows, dense, state)
        return tf.nest.map_structure(as_predicted, outputs)
