"""Training's effect on variables that it does not train, on JAX; see `keras/model/state.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras

from elasticdl.backends.base import Float32
from elasticdl.packages.jax.placed import JaxModel, of_32_bits
from elasticdl.packages.keras.model.state import StateStep, check_assigned


def small_rows(placed: JaxModel, layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
    """Return small random rows, always the same, for calls that nothing comes of."""
    placed.table_of(layer)
    shape = (*ids.shape, layer.output_dim)
    return 0.1 * jax.random.normal(jax.random.key(1), shape, jnp.float32)


class JaxStateStep(StateStep):
    """Calls the model in training from any state, by JAX."""

    def _prepared(
        self, tensors: Sequence[jax.Array], eagerly: bool
    ) -> Callable[[Float32], jax.Array]:
        function, dense = jax.jit(self._computed), self.placed.dense.values()
        return lambda state: function(dense, state, *tensors)

    def _computed(self, dense: jax.Array, state: jax.Array, *features: jax.Array) -> jax.Array:
        placed = self.placed
        assert isinstance(placed, JaxModel), "a model on JAX"

        def look_up(layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
            assert isinstance(placed, JaxModel), "a model on JAX"
            return small_rows(placed, layer, ids)

        with of_32_bits():
            called = placed.call(
                look_up,
                self._structure.fold_features(features),
                True,
                placed.dense.split(dense),
                placed.state.split(state),
                jnp.uint32(0),
            )
        check_assigned(placed, called)
        self.assigned = set(called.assigned)
        return placed.state.join(called.state)
