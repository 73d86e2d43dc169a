"""What training does to variables that it does not train, on JAX; see `keras/model/state.py`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from elasticdl.backends.base import Float32
from elasticdl.backends.keras.model.state import StateCall, StateTrials, check_assigned
from elasticdl.backends.keras.model.variables import is_float
from elasticdl.backends.keras.on_jax.placed import JaxModel, of_32_bits


def small_rows(placed: JaxModel, layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
    """Return small random rows, always the same, for calls that nothing comes of."""
    placed.table_of(layer)
    shape = (*ids.shape, layer.output_dim)
    return 0.1 * jax.random.normal(jax.random.key(1), shape, jnp.float32)


class JaxTrials(StateTrials):
    """Calls the model in training with other states, by JAX."""

    def _make_call(self, eagerly: bool) -> StateCall:
        assert isinstance(self.placed, JaxModel), "a model on JAX"
        placed = self.placed
        dense = placed.dense.values()
        function = jax.jit(self._computed)
        # Traced now: what is assigned is known from then on.
        zeros = np.zeros(placed.state.size, np.float32)
        jax.eval_shape(self._computed, dense, zeros, zeros, *self._tensors)

        def call(state: Float32, signs: Float32) -> tuple[jax.Array, jax.Array]:
            after, slopes = function(dense, state, signs, *self._tensors)
            return after, slopes

        return call

    def _computed(
        self, dense: jax.Array, state: jax.Array, signs: jax.Array, *features: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        placed = self.placed
        folded = self._structure.fold_features(features)
        before = placed.state.split(state)
        floats = [k for k, (variable, _) in enumerate(before) if is_float(variable)]

        def after(olds: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            given = list(before)
            for k, old in zip(floats, olds, strict=True):
                given[k] = (before[k][0], old)

            def look_up(layer: keras.layers.Layer, ids: jax.Array) -> jax.Array:
                assert isinstance(placed, JaxModel), "a model on JAX"
                return small_rows(placed, layer, ids)

            called = placed.call(
                look_up, folded, True, placed.dense.split(dense), given, jnp.uint32(0)
            )
            check_assigned(placed, called)
            self.assigned = set(called.assigned)
            return [called.state[k] for k in floats], called.state

        with of_32_bits():
            of_floats, pull_back, new = jax.vjp(after, [before[k][1] for k in floats], has_aux=True)
        directions = [sign for _, sign in placed.state.split(signs)]
        slopes = [jnp.zeros_like(old, jnp.float32) for _, old in before]
        for place, k in enumerate(floats):
            if id(before[k][0]) in self.assigned:
                cotangents = [jnp.zeros_like(value) for value in of_floats]
                cotangents[place] = directions[k].astype(of_floats[place].dtype)
                slopes[k] = pull_back(cotangents)[0][place]
        return placed.state.join(new), placed.state.join(slopes)
