"""FTRL-proximal with sparse group lasso: rows with little effect become zero."""

from __future__ import annotations

import math

import keras

from elasticdl.errors import ModelError

_EMBEDDINGS = "embeddings"  # what Keras and elasticdl call the weight of an Embedding layer


@keras.saving.register_keras_serializable(package="elasticdl")
class GroupFtrl(keras.optimizers.Ftrl):  # type: ignore[misc]  # keras has no types
    """Keras' `Ftrl`, in which each row of an embedding table is a group.

    A row becomes zero as a whole if its norm, in FTRL's linear terms, is at most
    `group_lasso_strength * sqrt(width)`; other rows are shrunk by it. The method is from "Adaptive
    Optimizers with Sparse Group Lasso for Neural Networks in CTR Prediction" (Yue et al., ECML PKDD
    2021), there for Group Adagrad. With strength 0 it is `Ftrl`. Other variables have no groups,
    and are updated as by `Ftrl`.

    Rows of zeros are left out by `--export_threshold=0`, and expire by `Expiry(min_norm=...)`.

    Args:
        learning_rate: The learning rate, as in Keras.
        group_lasso_strength: The strength of the group lasso, 0 or more.
        **kwargs: Keras' arguments of `Ftrl`; `learning_rate_power` must be -0.5.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        group_lasso_strength: float = 0.0,
        **kwargs: object,
    ) -> None:
        kwargs.setdefault("name", "group_ftrl")
        super().__init__(learning_rate=learning_rate, **kwargs)
        if not (math.isfinite(group_lasso_strength) and group_lasso_strength >= 0):
            raise ModelError(
                f"GroupFtrl: group_lasso_strength must be 0 or more, not {group_lasso_strength!r}"
            )
        if self.learning_rate_power != -0.5:
            raise ModelError(
                f"GroupFtrl: learning_rate_power must be -0.5, not {self.learning_rate_power!r}"
            )
        self.group_lasso_strength = float(group_lasso_strength)

    def update_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
    ) -> None:
        """Update a variable as `Ftrl` does, and then its rows as groups, if it is a table."""
        super().update_step(gradient, variable, learning_rate)
        if not self.group_lasso_strength or not is_table(variable):
            return
        ops = keras.ops
        linear = self._linears[self._get_variable_index(variable)]
        l1 = self.l1_regularization_strength
        remaining = ops.clip(linear, -l1, l1) - linear
        norm = ops.sqrt(ops.sum(ops.square(remaining), axis=-1, keepdims=True))
        bound = self.group_lasso_strength * math.sqrt(variable.shape[-1])
        # The tiny number keeps a row of zeros from a division by zero.
        share = ops.where(norm > bound, 1.0 - bound / ops.maximum(norm, 1e-30), 0.0)
        self.assign(variable, ops.multiply(variable, ops.cast(share, variable.dtype)))

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the optimizer."""
        return {**super().get_config(), "group_lasso_strength": self.group_lasso_strength}


def is_table(variable: keras.Variable) -> bool:
    """Say whether a variable is the weight of an `Embedding` layer."""
    # TensorFlow's variable stands for Keras' variable here. Its name ends with ":0", and may have a
    # path.
    return str(variable.name).split("/")[-1].split(":")[0] == _EMBEDDINGS
