"""Variables of a model on JAX: cut out of the flat vectors, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from elasticdl.backends.base import Float32
from elasticdl.packages.keras.model.variables import Variables

JaxValues = list[tuple[keras.Variable, jax.Array]]
"""(variable, array in its place)"""


class JaxVariables(Variables):
    """The variables that cross as one flat vector, as arrays of JAX."""

    def split(self, flat: jax.Array) -> JaxValues:
        """Cut a flat array into (variable, array of its shape and dtype) pairs."""
        return [
            (variable, _in_dtype_of(variable, flat[part].reshape(variable.shape)))
            for variable, part in zip(self.variables, self.parts, strict=True)
        ]

    def join(self, tensors: Sequence[jax.Array]) -> jax.Array:
        """Put arrays of the variables' shapes into one flat array."""
        if not tensors:
            return jnp.zeros([0], jnp.float32)
        return jnp.concatenate([jnp.ravel(jnp.asarray(t)).astype(jnp.float32) for t in tensors])

    def assign(self, flat: Float32) -> None:
        """Set the variables themselves; for the export."""
        for variable, value in self.split(jnp.asarray(flat, jnp.float32)):
            variable.assign(value)

    def values(self) -> Float32:
        """Return the variables' own values as a flat vector."""
        parts = [
            np.asarray(keras.ops.convert_to_numpy(v), np.float32).ravel() for v in self.variables
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)


class JaxSeeds:
    """States of seed generators, which each minibatch begins anew.

    Its seed comes as a number of 32 bits, of `seed_of`.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self.variables = tuple(variables)
        self._own = [_own(v) for v in variables]

    def begun(self, seed: jax.Array) -> JaxValues:
        """Give each generator its own seed mixed with the minibatch's, and counter zero."""
        return [(v, _begun(seed, own, v)) for v, own in zip(self.variables, self._own, strict=True)]

    @staticmethod
    def of(seed: jax.Array, variable: keras.Variable) -> jax.Array:
        """Do the same for a generator that is not the model's own."""
        # The state's first value is needed as a number, also while JAX traces.
        with jax.ensure_compile_time_eval():
            return _begun(seed, _own(variable), variable)


def seed_of(seed: int) -> np.uint32:
    """Return the seed of a minibatch in 32 bits."""
    # JAX computes with 32 bits. The exclusive or keeps the upper half of the seed in play.
    return np.uint32((seed ^ (seed >> 32)) & 0xFFFF_FFFF)


def _own(variable: keras.Variable) -> np.uint32:
    value = variable._value
    if value is None:  # it was made within this trace
        with jax.ensure_compile_time_eval():
            value = variable._initializer(variable.shape, dtype=variable.dtype)
    return np.uint32(np.asarray(value).ravel()[0])


def _begun(seed: jax.Array, own: np.uint32, variable: keras.Variable) -> jax.Array:
    mixed = jnp.bitwise_xor(jnp.asarray(seed, jnp.uint32), own)
    return jnp.stack([mixed, jnp.zeros_like(mixed)]).astype(variable.dtype)


def _in_dtype_of(variable: keras.Variable, value: jax.Array) -> jax.Array:
    """Cast floats; a mean over workers may be a little less than the integer that it stands for."""
    if variable.dtype.startswith(("int", "uint")):
        value = jnp.round(value)
    return value.astype(variable.dtype)
