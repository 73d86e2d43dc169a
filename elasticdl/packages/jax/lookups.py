"""The ids that a model on JAX looks up, found by tracing it; with all of their 64 bits.

The model is traced with JAX's 64 bits switched on. The part that computes the ids is cut out of the
trace, and nothing else runs for them. The trace also shows ids that depend on a parameter or on a
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import keras
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from elasticdl.backends.base import Int64
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.jax.placed import JaxModel
from elasticdl.packages.jax.variables import seed_of
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.model.lookups import check_ids
from elasticdl.packages.keras.model.placed import explaining

# From here on two integers may be the same float.
_EXACT_BELOW = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


@dataclass(frozen=True, slots=True)
class JaxSite:
    """One place where a table is looked up.

    Attributes:
        table: The number of the table.
        feature: The number of the feature that is used as ids without a change, if there is one.
        exact_below: The limit from which ids that were floats are not exact.
    """

    table: int
    feature: int | None
    exact_below: int | None


class JaxCollector:
    """The id sites of a model for one structure of features, in training or in inference.

    Raises:
        ModelError: Ids depend on a parameter, or on rows.
    """

    def __init__(self, placed: JaxModel, minibatch: KerasMinibatch, training: bool) -> None:
        self._placed = placed
        self._training = training
        self._structure = minibatch.structure
        self._num_features = len(self._structure.feature_specs)
        self._met: list[int] = []  # the table of each lookup of the newest trace
        with explaining(placed.model, minibatch), jax.enable_x64(True):
            self.sites = self._analyse(minibatch.tensors[: self._num_features])
            self._function = jax.jit(self.computed)

    @property
    def tables(self) -> list[int]:
        """The table of each site."""
        return [site.table for site in self.sites]

    def ids(self, minibatch: KerasMinibatch) -> list[Int64]:
        """Return the ids of each site.

        Raises:
            IdError: One cannot be an id.
        """
        features = minibatch.tensors[: self._num_features]
        computed: Sequence[jax.Array] = ()
        if any(site.feature is None for site in self.sites):
            with jax.enable_x64(True):
                computed = self._function(seed_of(minibatch.seed), *features)
        others = iter(computed)
        arrays: dict[int, Int64] = {}  # sites of one feature share an array
        found: list[Int64] = []
        for site in self.sites:
            if site.feature is None:
                ids = np.ascontiguousarray(next(others), np.int64)
            else:
                if site.feature not in arrays:
                    arrays[site.feature] = np.ascontiguousarray(features[site.feature], np.int64)
                ids = arrays[site.feature]
            found.append(check_ids(self._placed.tables[site.table], ids, site.exact_below))
        minibatch.pulled[:] = found
        return found

    def _trace(
        self,
        dense: jax.Array,
        state: jax.Array,
        rows: Sequence[jax.Array] | None,
        seed: jax.Array,
        features: Sequence[jax.Array],
    ) -> list[jax.Array]:
        """Return the ids of each lookup; rows are zeros if none are given."""
        placed = self._placed
        ids: list[jax.Array] = []
        self._met = []

        def note(layer: keras.layers.Layer, of_layer: jax.Array) -> jax.Array:
            given = jnp.asarray(of_layer)
            number = len(ids)
            self._met.append(placed.table_of(layer))
            ids.append(given.astype(jnp.int64))
            if rows is not None:
                return rows[number]
            return jnp.zeros((*given.shape, layer.output_dim), jnp.float32)

        folded = self._structure.fold_features(features)
        split = placed.dense.split(dense), placed.state.split(state)
        placed.call(note, folded, self._training, *split, seed)
        return ids

    def ids_of_all(self, seed: jax.Array, *features: jax.Array) -> list[jax.Array]:
        """Return the ids of all sites, of arrays that JAX traces."""
        dense = jnp.zeros(self._placed.dense.size, jnp.float32)
        state = jnp.zeros(self._placed.state.size, jnp.float32)
        return self._trace(dense, state, None, seed, features)

    def computed(self, seed: jax.Array, *features: jax.Array) -> list[jax.Array]:
        """Return the ids of the sites that are not features as they are."""
        ids = self.ids_of_all(seed, *features)
        return [one for one, site in zip(ids, self.sites, strict=True) if site.feature is None]

    def _analyse(self, features: Sequence[Array]) -> list[JaxSite]:
        sizes = self._placed.dense.size, self._placed.state.size
        dense, state = (jnp.zeros(size, jnp.float32) for size in sizes)
        seed = jnp.zeros([], jnp.uint32)
        shapes = jax.eval_shape(lambda *f: self._trace(dense, state, None, seed, f), *features)
        tables = list(self._met)
        rows = [
            jnp.zeros((*ids.shape, self._placed.tables[table].dim), jnp.float32)
            for ids, table in zip(shapes, tables, strict=True)
        ]
        # Rows are inputs of this trace and no zeros, so the trace shows which ids depend on them.
        traced = jax.make_jaxpr(self._trace)(dense, state, rows, seed, features)
        num_parameters = 2 + len(rows)
        return [
            self._site(traced.jaxpr, number, num_parameters, table)
            for number, table in enumerate(tables)
        ]

    def _site(self, jaxpr: jex.Jaxpr, number: int, num_parameters: int, table: int) -> JaxSite:
        wanted = [k == number for k in range(len(jaxpr.outvars))]
        cut, used = dce_jaxpr(jaxpr, wanted)
        name = self._placed.tables[table].name
        if any(used[:num_parameters]):
            raise ModelError(
                f"Embedding {name!r}: its ids depend on a parameter, or on rows that were looked "
                "up before, which is not supported with Keras on JAX: compute them from features "
                "alone, or set KERAS_BACKEND=tensorflow"
            )
        # Ids that are one unchanged feature need no call of JAX: `ids` takes the feature itself.
        places = [k for k, is_used in enumerate(used) if is_used]
        feature = None
        if len(places) == 1 and _is_as_it_is(cut) and places[0] > num_parameters:
            feature = places[0] - num_parameters - 1
        kinds = [kind for kind in _floats_made_whole(cut) if kind in _EXACT_BELOW]
        exact = min((_EXACT_BELOW[kind] for kind in kinds), default=None)
        return JaxSite(table, None if exact else feature, exact)


def _is_as_it_is(jaxpr: jex.Jaxpr) -> bool:
    """Say whether a trace does nothing to its input but to widen whole numbers."""
    return all(
        equation.primitive.name == "convert_element_type"
        and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.integer)
        and jnp.issubdtype(equation.params["new_dtype"], jnp.integer)
        and jnp.iinfo(equation.params["new_dtype"]).bits
        >= jnp.iinfo(equation.invars[0].aval.dtype).bits
        for equation in jaxpr.eqns
    )


def _floats_made_whole(jaxpr: jex.Jaxpr) -> list[str]:
    """Return the types of floats that a trace casts to whole numbers."""
    found: list[str] = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "convert_element_type":
            before = equation.invars[0].aval.dtype
            is_whole = jnp.issubdtype(equation.params["new_dtype"], jnp.integer)
            if is_whole and jnp.issubdtype(before, jnp.floating):
                found.append(str(before))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if isinstance(inner, jex.Jaxpr):
                found += _floats_made_whole(inner)
    return found
