"""Stands in a model for the variable of a table that no process holds as a whole."""

from __future__ import annotations

import keras
import numpy as np

from elasticdl.errors import ModelError


class TableVariable(keras.Variable):  # type: ignore[misc]  # keras has no types
    """The variable of a table on the ps replicas: name, path, shape and dtype, and no value.

    It stands among the model's variables where Keras has the table, so counts, names and summaries
    are those of Keras. Reading its value is refused. Rows that are assigned to it become the first
    rows of the table.

    Attributes:
        remedy: The advice for a user who needs the whole table; it ends the message.
        takes_rows: Whether rows may be assigned.
        given: The rows that were assigned, or None.
    """

    remedy: str = ""
    takes_rows: bool = True
    given: object = None

    @classmethod
    def of(cls, layer: keras.layers.Layer, remedy: str, takes_rows: bool) -> TableVariable:
        """Put such a variable among the variables of an embedding layer."""
        with keras.name_scope(layer.name, caller=layer):
            made = cls(
                layer.embeddings_initializer,
                shape=(layer.input_dim, layer.output_dim),
                dtype=layer.variable_dtype,
                name="embeddings",
            )
        made.remedy, made.takes_rows = remedy, takes_rows
        made.constraint = layer.embeddings_constraint
        # Keras shows and counts only the variables that a layer tracks.
        layer._track_variable(made)
        return made

    def _initialize_with_initializer(self, initializer: object) -> None:
        """Keep the table from being allocated."""
        self._value = None

    def _deferred_initialize(self) -> None:
        """Keep the table from being allocated when Keras initializes later."""

    @property
    def value(self) -> keras.KerasTensor:
        """Refuse: no process holds the table."""
        raise ModelError(
            f"the model file reads the whole table {self.path!r}, which was moved to the ps "
            f"replicas: no process has all of its rows; {self.remedy}"
        )

    def begin_with(self, rows: keras.KerasTensor) -> None:
        """Take the first rows of the table, in the table's shape.

        Raises:
            ModelError: This table gets its rows in another way.
        """
        if not self.takes_rows:
            raise ModelError(
                f"the model file assigns rows to the table {self.path!r}, which is on the ps "
                "replicas; say --pretrained_rows"
            )
        self.given = np.array(rows, np.float32)

    def _direct_assign(self, value: object) -> None:
        self.begin_with(value)

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={tuple(self.shape)}, on the ps replicas>"
