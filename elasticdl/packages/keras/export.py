"""The trained model as a SavedModel that serves without elasticdl."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from elasticdl.backends.base import Float32, TableSource
from elasticdl.backends.served import outputs_by_name
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import looking_up, serving
from elasticdl.packages.frameworks.user_code import no_place, user_code
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch, Structure, describe
from elasticdl.packages.keras.metrics.kinds import mask_of
from elasticdl.packages.keras.model.placed import PlacedModel, accepting_dicts, called_as_by_fit
from elasticdl.packages.keras.saved_tables import saved_table, write_rows
from elasticdl.packages.keras.types import Nested, Specs

ENDPOINT = "serve"
NOTES = Path("assets.extra", "elasticdl.json")  # a folder that TensorFlow leaves to others
ASKED = "the export of --output"  # whose model is asked a minibatch when it was written
_MOST_WORDS = 40  # of an error of TensorFlow
_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
_log = logging.getLogger(__name__)

Signatures = dict[str, tf.types.experimental.PolymorphicFunction]


def export_model(
    placed: PlacedModel,
    sample: KerasMinibatch,
    directory: Path,
    dense: Float32,
    state: Float32,
    tables: TableSource,
) -> None:
    """Write the model into `directory`, with the values given instead of its own.

    The model's own variables take the values (training never reads them). Tables become part
    of the graph: with `input_dim` an ordinary one, as `keras.layers.Embedding` has it, and
    otherwise the trained ids in order, and their rows. Rows are written in parts, once the rest is.
    """
    placed.dense.assign(dense)
    placed.state.assign(state)
    served, signatures = _served(placed, sample)
    tf.saved_model.save(served, str(directory), signatures=signatures)
    if served.tables:
        write_rows(served.tables, tables, directory)
    notes = directory / NOTES
    notes.parent.mkdir(exist_ok=True)
    has_masks = any(mask_of(leaf) is not None for leaf in tf.nest.flatten(placed.sample_outputs))
    notes.write_text(json.dumps({"output_names": placed.output_names, "has_masks": has_masks}))


def check_export(placed: PlacedModel, sample: KerasMinibatch) -> None:
    """Trace what would be exported.

    Raises:
        ModelError: It cannot be exported.
    """
    with user_code("--output: the export of the model", after=no_place):
        served, signatures = _served(placed, sample)
        for function in (served.serve, *signatures.values()):
            refuse_function(function)


def ask(directory: Path, sample: KerasMinibatch) -> None:
    """Load an export that was written, and ask it a minibatch.

    Raises:
        ModelError: It cannot be loaded, or does not answer.
    """
    Exported(directory, ASKED)(sample)


def refuse_function(function: tf.types.experimental.PolymorphicFunction) -> None:
    """Refuse a function that calls Python, or takes or gives what a SavedModel does not hold.

    Raises:
        ModelError: Names what to write.
    """
    concrete = function.get_concrete_function()
    _refuse_keys(concrete.structured_input_signature, "a feature")
    _refuse_keys(concrete.structured_outputs, "an output of the model")
    definition = concrete.graph.as_graph_def()
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    if any(node.op in _PYTHON for part in nodes for node in part):
        raise ModelError(
            "--output: the model calls Python (tf.py_function or tf.numpy_function), which no "
            "other process can load: write it with operations of TensorFlow or keras.ops"
        )


def _refuse_keys(structure: Nested, what: str) -> None:
    if isinstance(structure, Mapping):
        for key in structure:
            if not isinstance(key, str):
                raise ModelError(f"--output: the name of {what} is {key!r}: expected text as a key")
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        for part in structure:
            _refuse_keys(part, what)


def _served(placed: PlacedModel, sample: KerasMinibatch) -> tuple[tf.Module, Signatures]:
    """Return the module to save, and its signatures."""
    saved = [saved_table(table) for table in placed.tables]

    def lookup(layer: keras.layers.Layer, ids: tf.Tensor) -> tf.Tensor:
        return saved[placed.table_of(layer)](ids)

    def serve(features: Nested) -> Nested:
        with looking_up(lookup), serving(), accepting_dicts():
            return called_as_by_fit(placed.model, features, False)

    specs = named_features(sample.structure, placed.model)
    served = tf.Module()
    served.serve = tf.function(serve, input_signature=[specs], autograph=False)
    # The model itself is not a part: saving it would trace it again in other ways.
    of_tables = {id(variable) for table in saved for variable in table.variables}
    served.used_variables = [
        variable
        for variable in served.serve.get_concrete_function().graph.variables
        if id(variable) not in of_tables
    ]
    served.tables = saved
    # TensorFlow saves only attributes of the module.
    served.used_resources = resources_of(placed.model, served.serve)
    return served, signatures_of(served.serve, specs)


class Exported:
    """A SavedModel's `serve` endpoint.

    Attributes:
        output_names: Names of the outputs, where the exported model had any.
        has_masks: Whether outputs had masks, which a SavedModel does not keep.
    """

    def __init__(self, directory: Path, named: str = "") -> None:
        """Load it.

        Args:
            directory: The SavedModel.
            named: The name of the model in messages; by default `--saved_model`.
        """
        self._named = named or f"--saved_model={directory}"
        try:
            self._loaded = tf.saved_model.load(str(directory))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise ModelError(
                f"{self._named} is not a SavedModel: {' '.join(str(error).split())[:1000]}"
            ) from error
        if not hasattr(self._loaded, ENDPOINT):
            raise ModelError(
                f"{self._named} has no endpoint {ENDPOINT!r}; expected what --output "
                "of a training job, or keras.Model.export, writes"
            )
        self.output_names: tuple[str, ...] = ()
        self.has_masks = False
        notes = directory / NOTES
        if notes.is_file():  # a SavedModel of another origin has none
            noted = json.loads(notes.read_text())
            self.output_names = tuple(noted["output_names"])
            self.has_masks = bool(noted.get("has_masks"))

    def __call__(self, minibatch: KerasMinibatch) -> Nested:
        """Return the outputs for a minibatch's features."""
        try:
            return self._loaded.serve(minibatch.features)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            given = describe(minibatch.features)
            raise ModelError(
                f"the model of {self._named} cannot be called on what feed gives, {given}: "
                f"{said_by_tensorflow(error)}"
            ) from error


def said_by_tensorflow(error: Exception) -> str:
    """Return the end of an error's text, in which TensorFlow names the cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    left_out = ("File ", "[[", "Detected at node", "Graph execution error", "<stack traces")
    said = [line for line in lines if line and not line.startswith(left_out)]
    words = " ".join(said).split()
    return " ".join(words[-_MOST_WORDS:])


def resources_of(
    model: keras.Model, *functions: tf.types.experimental.PolymorphicFunction
) -> list[tf.saved_model.experimental.TrackableResource]:
    """Return the lookup tables and their like that a model uses.

    Functions may use others, of a layer that is called and is no part of the model.
    """
    found = list(tf.train.TrackableView(model).descendants())
    for function in functions:
        for handle, _ in function.get_concrete_function().graph.captures:
            owner = getattr(handle, "_parent_trackable", None)  # a weak reference
            found.append(owner and owner())
    kind = tf.saved_model.experimental.TrackableResource
    return list({id(one): one for one in found if isinstance(one, kind)}.values())


def named_features(structure: Structure, model: keras.Model) -> Specs:
    """Give the features' specs the names by which a serving client says them."""
    features = structure.features
    if isinstance(features, dict):
        return {name: _renamed(spec, name) for name, spec in features.items()}
    if isinstance(features, tf.TensorSpec):
        inputs = getattr(model, "inputs", None) or []
        return _renamed(features, inputs[0].name if len(inputs) == 1 else "features")
    return features


def signatures_of(serve: tf.types.experimental.PolymorphicFunction, specs: Specs) -> Signatures:
    """Return the signature of an endpoint; none where features are sparse or ragged."""
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(specs)):
        return {}
    return {"serving_default": _signature(serve, specs)}


def _renamed(spec: tf.TypeSpec, name: str) -> tf.TypeSpec:
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec(spec.shape, spec.dtype, name)
    return spec


def _signature(
    serve: tf.types.experimental.PolymorphicFunction, specs: Specs
) -> tf.types.experimental.PolymorphicFunction:
    """Wrap the endpoint for clients that pass named tensors and get named tensors."""
    flat = tf.nest.flatten(specs)
    names = _signature_names([spec.name or f"features_{k}" for k, spec in enumerate(flat)])
    flat = [_renamed(spec, name) for spec, name in zip(flat, names, strict=True)]

    @tf.function(input_signature=flat, autograph=False)  # type: ignore[untyped-decorator]
    def serving_default(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = serve(tf.nest.pack_sequence_as(specs, list(tensors)))
        if not isinstance(outputs, dict):
            outputs = tf.nest.flatten(outputs)
        return outputs_by_name(outputs, ())

    return serving_default


def _signature_names(names: list[str]) -> list[str]:
    """Return names that a signature may have, all different: `Income (EUR)` is `Income_EUR`.

    TensorFlow takes ASCII letters, digits and `_.-`, and no `_` at the beginning. A name that has
    none of them is `features_K`, of the K-th feature.
    """
    made: list[str] = []
    for k, name in enumerate(names):
        plain = name
        if not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.-]*", name):
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_-") or f"features_{k}"
        same = itertools.chain([plain], (f"{plain}_{k}" for k in itertools.count(1)))
        taken = {*made, *names} - {name}
        made.append(next(one for one in same if one not in taken))
    changed = [f"{old!r} is {new}" for old, new in zip(names, made, strict=True) if old != new]
    if changed:
        _log.warning(
            "names of inputs in the exported signature serving_default: %s; the endpoint serve "
            "takes them as they are",
            ", ".join(changed),
        )
    return made
