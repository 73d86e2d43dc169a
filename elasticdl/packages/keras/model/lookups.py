"""Collect mode: the small function that tells which embedding ids a minibatch needs.

The model is traced once with every embedding layer noting the ids that it is called with and
returning zeros. The part that computes the ids is cut out of that trace. Only this part runs. See
`docs/designs/collect-mode.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Int64, Lookup
from elasticdl.errors import IdError, ModelError
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure
from elasticdl.packages.keras.model.function import FlatFunction
from elasticdl.packages.keras.model.placed import (
    LayerTable,
    PlacedModel,
    TowerOutputs,
    explaining,
    zero_rows,
)
from elasticdl.packages.keras.model.recipe import (
    AskedIds,
    Leaves,
    Recipe,
    functions_of,
    nodes_within,
    not_of_the_record,
)
from elasticdl.packages.keras.types import ConcreteFunction

Pull = Lookup
"""`pull([(table, ids), ...], training) -> pulled` with `.rows`, `.dense`, `.state`."""

# These operations use the shape of their input alone, so ids do not depend on its values.
_SHAPE_ONLY = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_DRAWS = ("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal",
          "RandomShuffle", "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma",
          "RandomPoissonV2", "StatefulRandomBinomial", "RngReadAndSkip", "StatefulUniform",
          "StatefulUniformInt", "StatefulUniformFullInt", "StatefulStandardNormalV2",
          "StatefulTruncatedNormal", "Timestamp")  # fmt: skip
# From here on two integers may be the same float.
_EXACT_BELOW = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a table is looked up.

    `stage` is 0 where the ids follow from the features; where they depend on parameters it is
    one more than that of the sites whose rows they depend on. Ids that were floats are exact below
    `exact_below` alone. `recipe` says how they are computed; None: they may differ when they are
    computed again.
    """

    table: int
    ids: tf.Tensor  # in the traced graph
    rows: tf.Tensor  # likewise: the zeros that were given
    stage: int
    exact_below: int | None
    recipe: Recipe | None


@dataclass(frozen=True, slots=True)
class _Stage:
    """Finds the ids of the sites of one stage.

    Each different tensor of ids comes once. First come unchanged features (their numbers are
    `features`), then the tensors that `function` computes. `places` says which of them each site
    takes.
    """

    features: list[int]
    function: FlatFunction | None
    places: list[int]
    may_differ: str  # the name of a layer whose ids may be others when they are computed again


class Collector:
    """The id sites of a model for one structure of features, in training or in inference."""

    def __init__(self, placed: PlacedModel, minibatch: KerasMinibatch, training: bool) -> None:
        self._placed = placed
        self._training = training
        self.sites: list[Site] = []
        structure = minibatch.structure
        seed, dense, state = (
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([placed.dense.size], tf.float32),
            tf.TensorSpec([placed.state.size], tf.float32),
        )
        with explaining(placed.model, minibatch):
            # Only a wrapped function has `prune`, which cuts out the part that the ids need.
            traced = tf.compat.v1.wrap_function(
                lambda *inputs: self._trace(structure, inputs),
                [dense, state, seed, *structure.feature_specs],
            )
        self._traced = traced
        self._stages = self._cut(traced)
        # For each site: the number of the feature that has the strings, or a function of features.
        self._strings: dict[int, int | FlatFunction] = {}

    @property
    def tables(self) -> list[int]:
        """The table of each site."""
        return [site.table for site in self.sites]

    def ids(self, minibatch: KerasMinibatch, pull: Pull | None) -> list[Int64]:
        """Return the ids of each site, looking rows up where later ids depend on them."""
        found: list[Int64] = [np.zeros(0, np.int64)] * len(self.sites)
        tensors = minibatch.tensors[: len(minibatch.structure.feature_specs)]
        for stage, cut in enumerate(self._stages):
            results: Sequence[tf.Tensor] = []
            if cut.function is not None:
                given = [] if stage == 0 else self._rows_before(stage, found, pull)
                inputs = [*given, tf.constant(minibatch.seed, tf.int64), *tensors]
                results = cut.function(*inputs)
                if stage and cut.may_differ:  # a step cannot tell: its parameters may be newer
                    _check_again(results, cut.function(*inputs), cut.may_differ)
            # Sites with the same ids share one array: the client then deduplicates it once.
            arrays = [np.asarray(tensors[k]) for k in cut.features]
            arrays += [np.asarray(ids) for ids in results]
            for index, place in zip(self._members(stage), cut.places, strict=True):
                site = self.sites[index]
                found[index] = check_ids(
                    self._placed.sources[site.table], arrays[place], site.exact_below
                )
        minibatch.pulled[:] = found
        return found

    def asked(self, leaves: Leaves) -> AskedIds:
        """Return what notes the ids that another trace of the model asks for."""
        return AskedIds(
            [site.recipe for site in self.sites],
            [site.stage for site in self.sites],
            [self._placed.sources[site.table].name for site in self.sites],
            leaves,
        )

    def names(self, minibatch: KerasMinibatch, sites: Sequence[int]) -> list[list[str]]:
        """Return the strings that were hashed to the ids of some sites."""
        tensors = minibatch.tensors[: len(minibatch.structure.feature_specs)]
        found = []
        for site in sites:
            if site not in self._strings:
                self._strings[site] = self._strings_of(site)
            source = self._strings[site]
            if isinstance(source, int):
                strings = tensors[source]
            else:
                (strings,) = source(tf.constant(minibatch.seed, tf.int64), *tensors)
            flat = np.asarray(strings).ravel().tolist()
            found.append([string.decode(errors="replace") for string in flat])
        return found

    def _strings_of(self, site: int) -> int | FlatFunction:
        """Find in the trace what gives the strings of a site."""
        ids = _origin(self.sites[site].ids)
        if self.sites[site].stage or ids.op.type != "StringToHashBucketFast":
            table = self._placed.sources[self.sites[site].table]
            raise ModelError(
                f"Embedding {table.name!r} has keep_names, so it must be called with strings that "
                "are features or made of them, or with what tf.strings.to_hash_bucket_fast made of "
                f"such; found ids from {ids.op.type} ({ids.op.name})"
            )
        strings = _origin(ids.op.inputs[0])
        inputs = list(self._traced.inputs)
        others = inputs[2 : len(inputs) - len(self._traced.captured_inputs)]
        numbers = {tensor.name: number for number, tensor in enumerate(others[1:])}
        if strings.name in numbers:
            return numbers[strings.name]
        return FlatFunction(self._traced.prune(others, [strings]))

    def _trace(self, structure: Structure, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        dense, state, seed = inputs[:3]
        graph = tf.compat.v1.get_default_graph()
        walk = _Walk([dense, state])
        leaves = Leaves(dense, state, seed, inputs[3:])

        def note(layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
            if ids.graph is not graph:
                raise ModelError(
                    f"Embedding {layer.name!r} is called inside a tf.function, tf.cond, "
                    "tf.while_loop or tf.map_fn; call it outside (the whole step is compiled "
                    "anyway) and use its result there"
                )
            stage = walk.stage_of(ids, layer)
            # The identity is an operation of its own, by which the walk and `prune` find these
            # rows.
            rows = tf.identity(zero_rows(ids, layer.output_dim))
            walk.add_rows(rows, stage)
            table, recipe = self._placed.table_of(layer), leaves.recipe(ids)
            leaves.add_rows(rows, len(self.sites))
            self.sites.append(Site(table, ids, rows, stage, _exact_below(ids), recipe))
            return rows

        features = structure.fold_features(inputs[3:])
        split = self._placed.dense.split(dense), self._placed.state.split(state)
        self._placed.call(note, features, self._training, *split, seed)
        return [site.ids for site in self.sites]

    def _cut(self, traced: ConcreteFunction) -> list[_Stage]:
        """Make of the trace what gives the ids of each stage."""
        inputs = list(traced.inputs)
        dense_state, others = inputs[:2], inputs[2 : len(inputs) - len(traced.captured_inputs)]
        numbers = {tensor.name: number for number, tensor in enumerate(others[1:])}
        stages = []
        for stage in range(1 + max((site.stage for site in self.sites), default=0)):
            before = [site.rows for site in self.sites if site.stage < stage]
            # Ids of stage 0 need neither rows nor parameters, so nothing is pulled for them.
            feeds = [*before, *dense_state, *others] if stage else others
            wanted = [_origin(self.sites[k].ids) for k in self._members(stage)]
            names = list(dict.fromkeys(tensor.name for tensor in wanted))
            features = [numbers[name] for name in names if name in numbers]
            computed = [name for name in names if name not in numbers]
            order = [name for name in names if name in numbers] + computed
            fetches = {tensor.name: tensor for tensor in wanted}
            function = (
                FlatFunction(traced.prune(feeds, [fetches[name] for name in computed]))
                if computed
                else None
            )
            places = [order.index(tensor.name) for tensor in wanted]
            unsure = [self.sites[k] for k in self._members(stage) if self.sites[k].recipe is None]
            may_differ = self._placed.sources[unsure[0].table].name if unsure else ""
            stages.append(_Stage(features, function, places, may_differ))
        return stages

    def _members(self, stage: int) -> list[int]:
        return [k for k, site in enumerate(self.sites) if site.stage == stage]

    def _rows_before(self, stage: int, found: list[Int64], pull: Pull | None) -> list[tf.Tensor]:
        if pull is None:
            raise ModelError(
                f"model {self._placed.model.name!r} computes ids from embeddings or other "
                "parameters; that needs a lookup (Trainer.set_lookup) to compute them with"
            )
        needed = [k for k, site in enumerate(self.sites) if site.stage < stage]
        pulled = pull([(self.sites[k].table, found[k]) for k in needed], training=self._training)
        return [tf.constant(x) for x in (*pulled.rows, pulled.dense, pulled.state)]


def _check_again(results: Sequence[tf.Tensor], again: Sequence[tf.Tensor], name: str) -> None:
    """Refuse ids that are others when they are computed again."""
    if not all(np.array_equal(one, other) for one, other in zip(results, again, strict=True)):
        raise ModelError(not_of_the_record(name))


def check_ids(
    table: LayerTable | TowerOutputs, ids: Int64, exact_below: int | None = None
) -> Int64:
    """Refuse ids that no row can have; as unsigned numbers, negative ones are large too.

    Args:
        table: The table that the ids are for.
        ids: The ids.
        exact_below: The first number that the float type of which they were made cannot tell
            from the next; None: they were integers.

    Raises:
        IdError: An id is negative, not below `input_dim`, or not exact.
    """
    if not ids.size:
        return ids
    limit = 2**63 if table.input_dim is None else table.input_dim
    largest = int(ids.view(np.uint64).max())
    if largest < min(limit, exact_below or limit):
        return ids
    if largest < limit:
        raise IdError(
            f"Embedding {table.name!r}: ids that were floats of this type are exact below "
            f'{exact_below} only, found {largest}; say dtype="int64" where they are made, '
            "for example in keras.Input or in feed"
        )
    wrong = int(ids[(ids < 0) | (ids >= limit)].flat[0])
    if wrong < 0:
        raise IdError(
            f"Embedding {table.name!r}: ids must not be negative, found {wrong}; "
            "feed or the model makes it"
        )
    raise IdError(
        f"Embedding {table.name!r}: ids must be below input_dim={limit}, found {wrong}; "
        "raise input_dim, or leave it out where the layer is elasticdl.layers.Embedding"
    )


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that this one is a mere copy of, or itself."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _exact_below(ids: tf.Tensor) -> int | None:
    """Return from where on ids that were floats may have met; None for others."""
    tensor = _origin(ids)
    while tensor.op.type == "Cast":
        tensor = _origin(tensor.op.inputs[0])
        if tensor.dtype.is_floating:
            return _EXACT_BELOW.get(tensor.dtype)
    return None


class _Walk:
    """Finds what a tensor was computed from, by walking its graph backwards."""

    def __init__(self, parameters: Sequence[tf.Tensor]) -> None:
        self._stages = {p.op.name: 1 for p in parameters}

    def add_rows(self, rows: tf.Tensor, stage: int) -> None:
        """Note that tensors which depend on these rows belong to the next stage."""
        self._stages[rows.op.name] = stage + 1

    def stage_of(self, tensor: tf.Tensor, layer: keras.layers.Layer) -> int:
        """Return the stage of ids: 0, or the highest stage that they depend on."""
        stage, seen, todo = 0, set(), [tensor.op]
        while todo:
            op = todo.pop()
            if op.name in seen:
                continue
            seen.add(op.name)
            if op.name in self._stages:
                stage = max(stage, self._stages[op.name])
                continue
            if draws := _draws(op):
                raise ModelError(
                    f"Embedding {layer.name!r}: ids are drawn at random by {draws} "
                    f"({op.name}), so they cannot be known before the step; draw them in feed, "
                    "or with a keras.random.SeedGenerator that the layer makes in __init__"
                )
            if op.type not in _SHAPE_ONLY:
                todo.extend(source.op for source in op.inputs)
        return stage


def _draws(op: tf.Operation) -> str:
    """Return which random operation this is, or has in a function that it calls; else ""."""
    if op.type in _DRAWS:
        return str(op.type)
    called = functions_of(op)
    if not called:
        return ""
    inside = {node.op for node in nodes_within(op.graph, called)}
    return next((name for name in _DRAWS if name in inside), "")
