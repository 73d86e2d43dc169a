"""Whether a model on JAX can be exported: it is compiled for any number of records then."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import export

from elasticdl.packages.jax.lookups import JaxCollector
from elasticdl.packages.jax.placed import JaxModel
from elasticdl.packages.jax.step import GivenArrays, JaxInference
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch


def shape_of_any(shape: tf.TensorShape | Sequence[int | None], number: int) -> str:
    """Return a shape as JAX says it: `b` records, and a name for each other size that is free."""
    sizes = [str(size) if size is not None else f"d{number}_{k}" for k, size in enumerate(shape)]
    if sizes and shape[0] is None:
        sizes[0] = "b"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def problem_of_any_size(placed: JaxModel, collector: JaxCollector, inferred: KerasMinibatch) -> str:
    """Say why the model cannot be traced for any number of records; "" if it can.

    Args:
        placed: The model.
        collector: Its lookups in inference.
        inferred: A minibatch of inference.
    """
    structure = inferred.structure
    # Sizes of one name are the same size only within one scope.
    scope = export.SymbolicScope()
    features = [
        jax.ShapeDtypeStruct(
            export.symbolic_shape(shape_of_any(spec.shape, k), scope=scope),
            spec.dtype.as_numpy_dtype,
        )
        for k, spec in enumerate(structure.feature_specs)
    ]
    seed = jnp.zeros([], jnp.uint32)
    inference = JaxInference(placed, collector.tables, structure)
    try:
        # Ids are computed with 64 bits, as in a step.
        with jax.enable_x64(True):
            ids = jax.eval_shape(collector.ids_of_all, seed, *features)
        rows = [
            jax.ShapeDtypeStruct((*one.shape, placed.tables[table].dim), jnp.float32)
            for one, table in zip(ids, collector.tables, strict=True)
        ]
        sizes = placed.dense.size, placed.state.size
        dense, state = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes)
        jax.eval_shape(inference.compute, GivenArrays(rows, dense, state, seed, features))
    except Exception as error:  # of code of the user, Keras or JAX
        return plain(error)
    return ""


def plain(error: Exception) -> str:
    """Return the words of an error on one line, without what Keras prints in bold."""
    return " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())[:500]
