"""The trained model as a small SavedModel, whose rows lie beside it. See `docs/serving.md`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Float32
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import looking_up, serving
from elasticdl.packages.frameworks.user_code import no_place, user_code
from elasticdl.packages.keras.export import (
    ASKED,
    named_features,
    refuse_function,
    resources_of,
    said_by_tensorflow,
)
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, describe
from elasticdl.packages.keras.model.lookups import Site
from elasticdl.packages.keras.model.placed import (
    PlacedModel,
    accepting_dicts,
    called_as_by_fit,
    zero_rows,
)
from elasticdl.packages.keras.model.variables import Variables
from elasticdl.packages.keras.types import Nested

DESCRIPTION, DENSE, MODEL = "model.json", "dense.npz", "saved_model"
_FORMAT = 1


def export_beside(
    placed: PlacedModel,
    sample: KerasMinibatch,
    sites: list[Site],
    directory: Path,
    dense: Float32,
    state: Float32,
) -> None:
    """Write all of the model but its rows.

    Raises:
        ModelError: Ids depend on rows, so nobody could look rows up before the model is called.
    """
    placed.dense.assign(dense)
    placed.state.assign(state)
    tf.saved_model.save(_served(placed, sample, sites), str(directory / MODEL))
    # It has a random number, and the files of one model are to be equal whoever writes them.
    (directory / MODEL / "fingerprint.pb").unlink(missing_ok=True)
    np.savez(directory / DENSE, allow_pickle=False, **_values(placed.dense, placed.state))
    tables = [site.table for site in sites]
    (directory / DESCRIPTION).write_text(
        json.dumps(describe_beside(placed, tables), indent=1) + "\n"
    )


def check_export_beside(placed: PlacedModel, sample: KerasMinibatch, sites: list[Site]) -> None:
    """Trace what would be exported.

    Raises:
        ModelError: It cannot be exported so.
    """
    with user_code("--output_tables=parquet: the export of the model", after=no_place):
        served = _served(placed, sample, sites)
        for function in (served.ids, served.score):
            refuse_function(function)


def ask_beside(directory: Path, sample: KerasMinibatch) -> None:
    """Load an export that was written, and ask it a minibatch, with rows of zeros.

    Raises:
        ModelError: It cannot be loaded, or does not answer.
    """
    try:
        model = tf.saved_model.load(str(directory / MODEL))
        described = json.loads((directory / DESCRIPTION).read_text())
        dims = {table["name"]: table["dim"] for table in described["tables"]}
        pairs = zip(model.ids(sample.features), described["lookups"], strict=True)
        rows = [tf.zeros([*ids.shape, dims[table]]) for ids, table in pairs]
        model.score(sample.features, rows)
    except (tf.errors.OpError, OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"the model of {ASKED} cannot be called on what feed gives, "
            f"{describe(sample.features)}: {said_by_tensorflow(error)}"
        ) from error


def _served(placed: PlacedModel, sample: KerasMinibatch, sites: list[Site]) -> tf.Module:
    """Return the module to save.

    Raises:
        ModelError: Ids depend on rows.
    """
    late = [placed.tables[site.table].name for site in sites if site.stage]
    if late:
        raise ModelError(
            f"--output_tables=parquet: the ids of Embedding {late[0]!r} are computed of other "
            "parameters, so its rows cannot be looked up before the model is called; leave the "
            "rows inside (--output_tables=inside)"
        )
    specs = named_features(sample.structure, placed.model)

    def ids(features: Nested) -> list[tf.Tensor]:
        found: list[tf.Tensor] = []

        def note(layer: keras.layers.Layer, of_layer: tf.Tensor) -> tf.Tensor:
            found.append(of_layer)
            return zero_rows(of_layer, layer.output_dim)

        with looking_up(note), serving(), accepting_dicts():
            called_as_by_fit(placed.model, features, False)
        return found

    def score(features: Nested, rows: list[tf.Tensor]) -> Nested:
        given = iter(rows)

        def lookup(layer: keras.layers.Layer, of_layer: tf.Tensor) -> tf.Tensor:
            # The rows get the batch size of the ids, as in a SavedModel with tables. TensorFlow
            # adds branches in another order if it does not know that their sizes are equal.
            shape = tf.concat([tf.shape(of_layer), [layer.output_dim]], 0)
            return tf.reshape(next(given), shape)

        with looking_up(lookup), serving(), accepting_dicts():
            return called_as_by_fit(placed.model, features, False)

    served = tf.Module()
    served.ids = tf.function(ids, input_signature=[specs], autograph=False)
    # The rows have no static shape: otherwise TensorFlow sees that the reshape in `lookup` changes
    # nothing, and drops it.
    rows = [tf.TensorSpec(None, tf.float32) for _ in sites]
    served.score = tf.function(score, input_signature=[specs, rows], autograph=False)
    # In the order of the flat vectors: whoever serves gives them the values of another version.
    served.dense = [variable._value for variable in placed.dense.variables]
    served.state = [variable._value for variable in placed.state.variables]
    served.used_variables = list(served.score.get_concrete_function().graph.variables)
    served.used_resources = resources_of(placed.model, served.ids, served.score)
    return served


def _values(*groups: Variables) -> dict[str, Array]:
    return {v.path: as_numbers(v.numpy()) for group in groups for v in group.variables}


def describe_beside(placed: PlacedModel, lookups: Sequence[int]) -> dict[str, object]:
    """Return what a reader must know of the model, given the table of each lookup."""
    return {
        "format": _FORMAT,
        "tables": [
            {
                "name": table.name,
                "dim": table.dim,
                "unseen": table.initializer.centre,
                "input_dim": table.input_dim,
            }
            for table in placed.tables
        ],
        "lookups": [placed.tables[table].name for table in lookups],
        "dense": {v.path: [int(n) for n in v.shape] for v in placed.dense.variables},
        "state": {v.path: [int(n) for n in v.shape] for v in placed.state.variables},
        "outputs": list(placed.output_names),
    }
