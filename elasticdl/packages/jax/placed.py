"""A user's Keras model on JAX, built so that embedding rows are its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import keras

from elasticdl.errors import ElasticdlError, ModelError
from elasticdl.packages.jax.variables import JaxSeeds, JaxValues, JaxVariables
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.layers.embedding import Embedding
from elasticdl.packages.keras.layers.remote import Remote
from elasticdl.packages.keras.model.placed import Called, PlacedModel
from elasticdl.packages.keras.types import Lookup, Nested

_INSTEAD = "say KERAS_BACKEND=tensorflow"


class JaxModel(PlacedModel):
    """The model, its tables, and its variables, as arrays of JAX.

    Raises:
        ModelError: The model has a layer that is not for JAX.
    """

    dense: JaxVariables
    state: JaxVariables

    def __init__(
        self,
        make_model: Callable[[], object],
        sample: KerasMinibatch,
        seed: int,
        threshold_bytes: int,
    ) -> None:
        with of_32_bits():
            super().__init__(make_model, sample, seed, threshold_bytes)
        # The base class sorts the variables; here they get the operations of JAX.
        self.dense = JaxVariables(self.dense.variables)
        self.state = JaxVariables(self.state.variables)
        self.seeds = JaxSeeds(self.seeds.variables)
        self._check_layers()

    def call(
        self,
        lookup: Lookup,
        features: Nested,
        training: bool,
        dense: JaxValues,
        state: JaxValues,
        seed: jax.Array,
        loss: Callable[[Nested], jax.Array] | None = None,
    ) -> Called:
        """Run the model on arrays in place of its variables; see `PlacedModel.call`."""
        try:
            return super().call(lookup, features, training, dense, state, seed, loss)
        except ElasticdlError:
            raise
        except Exception as error:
            if hint := only_in_feed(error):
                raise ModelError(
                    f"call() of model {self.model.name!r} needs the values of an array before "
                    f"they are computed, as functions of TensorFlow and NumPy do{hint}"
                ) from error
            raise

    def _check_layers(self) -> None:
        for layer in (*self.model._flatten_layers(), *self._layers):
            name = type(layer).__name__
            if isinstance(layer, Remote):
                raise ModelError(
                    f"layer {layer.name!r} is elasticdl.layers.{name}, which needs TensorFlow: "
                    f"{_INSTEAD}"
                )
            if type(layer).__module__.startswith("elasticdl.packages.keras.preprocessing"):
                raise ModelError(
                    f"layer {layer.name!r} is elasticdl.preprocessing.{name}, which is computed by "
                    f"TensorFlow, in a model on JAX: call it in feed, or {_INSTEAD}"
                )
            if isinstance(layer, Embedding) and (layer.keep_names or layer.statistics is not None):
                what = "keep_names" if layer.keep_names else "statistics"
                raise ModelError(
                    f"Embedding {layer.name!r} has {what}, which is not supported with Keras on "
                    f"JAX: leave it out, or {_INSTEAD}"
                )

    def _meet(self, layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
        """Look up zeros, noting the layer."""
        if not any(known is layer for known in self._layers):
            self._layers.append(layer)
        return jnp.zeros((*ids.shape, layer.output_dim), jnp.float32)


@contextmanager
def of_32_bits() -> Iterator[None]:
    """Keep JAX from warning of numbers of 64 bits, which are checked where it would matter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        yield


def only_in_feed(error: BaseException) -> str:
    """Return what to write instead where something wants the values of arrays that JAX traces."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:  # Keras makes others of some errors
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    words = "".join(f"{type(one).__name__} {one}" for one in causes)
    if "Tracer" not in words and "tensorflow" not in words.lower():
        return ""
    return (
        "; with KERAS_BACKEND=jax the model and its loss are computed by JAX: write them with "
        "keras.ops, keras.losses or jax.numpy, and tf.* in feed alone"
    )
