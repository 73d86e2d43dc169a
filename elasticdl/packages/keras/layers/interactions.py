"""Layers of the papers on click prediction, which combine the features of a record.

Each is a plain Keras layer on the vectors of a record's fields, (records, fields, dim), or on these
side by side, (records, width). The model zoo's models share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import Shape

ops = keras.ops


@keras.saving.register_keras_serializable(package="elasticdl")
class FactorizationMachine(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Sums the inner products of all pairs of a record's vectors.

    Rendle, "Factorization Machines", ICDM 2010, in the linear time of its lemma 3.1; the second
    part of DeepFM (Guo et al., IJCAI 2017). (records, fields, dim) -> (records, 1).
    """

    def call(self, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Return half of (square of the sum - sum of the squares), summed over dim."""
        total = ops.sum(vectors, axis=1)
        squares = ops.sum(vectors * vectors, axis=1)
        return 0.5 * ops.sum(total * total - squares, axis=1, keepdims=True)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, int]:
        """Return (records, 1)."""
        return (input_shape[0], 1)


@keras.saving.register_keras_serializable(package="elasticdl")
class CompressedInteraction(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """The compressed interaction network (CIN) of xDeepFM.

    Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
    Systems", KDD 2018, equations 6 to 8. A row of layer k is a weighted sum of products, element by
    element. The products are those of each row of layer k - 1 with each of the record's vectors.
    All rows of all layers are summed over dim. (records, fields, dim) -> (records, sum of `sizes`).

    Args:
        sizes: The number of rows of each layer.
        activation: The activation of each layer. The paper found the identity, the default, best.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (128, 128),
        activation: str | Callable[[keras.KerasTensor], keras.KerasTensor] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.sizes = _sizes("sizes", sizes, self)
        self.activation = keras.activations.get(activation)

    def build(self, input_shape: Shape) -> None:
        """Make a matrix for each layer: (rows before x fields, rows)."""
        fields = input_shape[1]
        assert fields is not None, "a record has a fixed number of vectors"
        self.filters = []
        before = fields
        for number, size in enumerate(self.sizes):
            self.filters.append(
                self.add_weight(
                    shape=(before * fields, size),
                    initializer="glorot_uniform",
                    name=f"filters_{number}",
                )
            )
            before = size

    def call(self, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Return the sums of the rows of all layers."""
        fields, dim = vectors.shape[1:]
        rows, pooled = vectors, []
        for filters in self.filters:
            products = rows[:, :, None, :] * vectors[:, None, :, :]
            products = ops.reshape(products, (-1, rows.shape[1] * fields, dim))
            mixed = ops.matmul(ops.transpose(products, (0, 2, 1)), filters)
            rows = ops.transpose(self.activation(mixed), (0, 2, 1))
            pooled.append(ops.sum(rows, axis=2))
        return ops.concatenate(pooled, axis=1)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, int]:
        """Return (records, rows of all layers)."""
        return (input_shape[0], sum(self.sizes))

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "sizes": list(self.sizes),
            "activation": keras.activations.serialize(self.activation),
        }


@keras.saving.register_keras_serializable(package="elasticdl")
class CrossNetwork(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """The cross network of DCN, or of DCN v2. (records, width) -> (records, width).

    Version 1, Wang et al., "Deep & Cross Network for Ad Click Predictions", ADKDD 2017, equation 3:
    `x[l+1] = x[0] (x[l] . w[l]) + b[l] + x[l]`.

    Version 2, Wang et al., "DCN V2: Improved Deep & Cross Network", WWW 2021, equation 1:
    `x[l+1] = x[0] * (W[l] x[l] + b[l]) + x[l]`, element by element; with a rank, equation 2, W[l]
    is the product of two thin matrices.

    Args:
        num_layers: The number of layers; each combines the input with the output of the layer
            before.
        version: 1 or 2.
        rank: The rank of the matrices of version 2; None: full.
    """

    def __init__(
        self, num_layers: int = 3, version: int = 2, rank: int | None = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        (self.num_layers,) = _sizes("num_layers", [num_layers], self)
        if version not in (1, 2) or (version == 1 and rank is not None):
            raise ModelError(
                f"CrossNetwork {self.name!r}: version must be 1 or 2, and rank is of version 2 "
                f"alone; found version={version!r}, rank={rank!r}"
            )
        self.version = version
        self.rank = None if rank is None else _sizes("rank", [rank], self)[0]

    def build(self, input_shape: Shape) -> None:
        """Make the weights of each layer."""
        width = input_shape[-1]
        shapes: list[Shape]
        if self.version == 1:
            shapes = [(width, 1)]
        elif self.rank is None:
            shapes = [(width, width)]
        else:
            shapes = [(width, self.rank), (self.rank, width)]
        self.kernels = [
            [
                self.add_weight(
                    shape=shape, initializer="glorot_uniform", name=f"kernel_{layer}_{part}"
                )
                for part, shape in enumerate(shapes)
            ]
            for layer in range(self.num_layers)
        ]
        self.biases = [
            self.add_weight(shape=(width,), initializer="zeros", name=f"bias_{layer}")
            for layer in range(self.num_layers)
        ]

    def call(self, first: keras.KerasTensor) -> keras.KerasTensor:
        """Return the last layer."""
        last = first
        for kernels, bias in zip(self.kernels, self.biases, strict=True):
            product = last
            for kernel in kernels:
                product = ops.matmul(product, kernel)
            if self.version == 1:
                last = first * product + bias + last
            else:
                last = first * (product + bias) + last
        return last

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "version": self.version,
            "rank": self.rank,
        }


def _sizes(what: str, sizes: Sequence[int], layer: keras.layers.Layer) -> tuple[int, ...]:
    if not sizes or not all(isinstance(size, int | np.integer) and size > 0 for size in sizes):
        raise ModelError(
            f"{type(layer).__name__} {layer.name!r}: {what} must be positive whole numbers, found "
            f"{list(sizes)!r}"
        )
    return tuple(int(size) for size in sizes)
