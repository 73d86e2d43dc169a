"""What calls of model and loss leave in Python: put back after trials, and none of it may matter.

A worker calls both more often than there are steps, and a compiled step runs Python only when it is
traced. In plain Keras a number that Python counts there is a constant of the compiled step, which
says how often the model was called before; by `run_eagerly` it counts steps, and no other worker,
no successor and no checkpoint has it. Both are refused where a step depends on it.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.backends.keras.feed.minibatch import KerasMinibatch
from elasticdl.backends.python_state import (
    MOST_BYTES,
    PythonState,
    after_another_and_alone,
    is_same,
    shown,
)
from elasticdl.errors import ModelError

log = logging.getLogger(__name__)

COUNT_IN_A_LAYER = (
    "A number that steps change belongs in a variable of a layer (self.steps = "
    'self.add_weight(name="steps", initializer="zeros", trainable=False), and '
    "self.steps.assign_add(1.0) in its call): variables are carried"
)
_UNIQUE = re.compile(r"_\d+\b")  # what TensorFlow adds to the names of functions


@contextmanager
def leaving_no_trace(model: keras.Model, loss: object) -> Iterator[None]:
    """Put back after the block what calls of model and loss have changed in Python."""
    with note(model, loss):
        yield


def note(model: keras.Model, loss: object) -> PythonState:
    """Note all that a model and a loss can reach; variables of Keras are not Python's."""
    return PythonState({"model": model, "loss": loss}, visit)


def leaves_a_trace(before: PythonState, after: PythonState) -> bool:
    """Whether a call has changed something in Python, or has drawn random numbers there."""
    return bool(before.differences(after) or after.drawn_since(before))


def check_traces(model: keras.Model, loss: object, trace: Callable[[], str]) -> None:
    """Refuse a model or a loss whose compiled step depends on how often it was traced.

    Args:
        model: The user's.
        loss: The user's.
        trace: Traces both anew; returns the text of what is computed.

    Raises:
        ModelError: Names what Python has counted.
    """
    with leaving_no_trace(model, loss):
        graphs = [trace()]
        once = note(model, loss)
        graphs.append(trace())
        twice = note(model, loss)
        changed, drawn = once.differences(twice), twice.drawn_since(once)
    if drawn and graphs[0] != graphs[1] and not changed:
        log.warning(
            "the model or the loss draws from %s when a step is compiled, and not with each step: "
            "all steps have the number that was drawn then, and each worker has another one. "
            "keras.random, and layers such as Dropout, draw with each step",
            shown(drawn),
        )
    if not changed:
        return
    if graphs[0] != graphs[1]:
        raise ModelError(
            f"each call of the model or the loss changes {shown(changed)}, which only Python has, "
            "and the step depends on it. Python runs when a step is compiled, not with each step, "
            "so the step would keep what was there by chance; and other workers, a worker that "
            f"replaces a lost one, and checkpoints do not have it. {COUNT_IN_A_LAYER}"
        )
    log.warning(
        "each call of the model or the loss changes %s, which only Python has: it counts how often "
        "a step was compiled, and is put back after trials; do not train by it",
        shown(changed),
    )


def check_steps(
    model: keras.Model,
    loss: object,
    minibatch: KerasMinibatch,
    step: Callable[[KerasMinibatch], object],
) -> None:
    """Refuse a model or a loss whose step depends on what Python keeps of the steps before it.

    What a step merely leaves, to be looked at, is none of that: the next one leaves its own.

    Args:
        model: The user's.
        loss: The user's.
        minibatch: A first one.
        step: Makes a step from the initial values that updates nothing; returns what it computes.

    Raises:
        ModelError: Names what is kept.
    """
    (found, with_history), (expected, without) = after_another_and_alone(
        note(model, loss), lambda: note(model, loss), step, minibatch, _smaller(minibatch)
    )
    kept = with_history.differences(without)
    if kept and not all(map(is_same, _arrays(found), _arrays(expected))):
        raise ModelError(
            f"each step of training changes {shown(kept)}, which only Python has, and the next "
            "step depends on it: other workers, a worker that replaces a lost one, and checkpoints "
            f"do not have it. {COUNT_IN_A_LAYER}"
        )
    if kept:
        log.warning(
            "each step of training changes %s, which only Python has: each worker has its own, and "
            "one that replaces a lost one begins anew; do not train by it",
            shown(kept),
        )


def _arrays(results: object) -> list[NDArray[np.float64]]:
    return [np.asarray(result, np.float64) for result in tf.nest.flatten(results)]


def _smaller(minibatch: KerasMinibatch) -> KerasMinibatch:
    """Return a minibatch with smaller numbers in its features, and the same ids."""
    end = len(minibatch.structure.feature_specs)
    features = [t * 0.5 if t.dtype.is_floating else t for t in minibatch.tensors[:end]]
    return replace(minibatch, tensors=(*features, *minibatch.tensors[end:]))


def visit(state: PythonState, name: str, thing: object) -> bool:
    """Note an object of Keras or TensorFlow; see `python_state.Visit`."""
    if isinstance(thing, keras.layers.Layer):
        _visit_layer(state, name, thing)
    elif isinstance(thing, keras.Variable):
        pass  # what is assigned to it is looked at elsewhere
    elif isinstance(thing, tf.Variable):
        _visit_variable(state, name, thing)
    elif isinstance(thing, tf.Tensor):
        if hasattr(thing, "numpy") and not _is_large(thing):
            state.values[name] = thing.numpy()
    else:
        return False
    return True


def is_of_a_library(layer: keras.layers.Layer) -> bool:
    """Whether the class of a layer is one of Keras or of elasticdl."""
    return type(layer).__module__.startswith(("keras.", "elasticdl."))


def _visit_layer(state: PythonState, name: str, layer: keras.layers.Layer) -> None:
    own, of_keras = vars(layer), _of_keras()
    if not layer.built:
        pass  # its first call makes what then stays
    elif is_of_a_library(layer):  # it may hold what a user wrote
        for key, value in own.items():
            if key not in of_keras and not key.startswith("_"):
                state.add(f"{name}.{key}", value)
    else:
        state.attributes(name, layer, lambda key: key in of_keras)
        state.add(type(layer).__qualname__, type(layer))
    for child in layer._layers:
        state.add(f"{name}.{child.name}", child)


def _visit_variable(state: PythonState, name: str, variable: tf.Variable) -> None:
    if not tf.executing_eagerly() or _is_large(variable):
        return  # a trace assigns nothing
    held = variable.value()
    state.undo(lambda: variable.assign(held))
    state.values[name] = held.numpy()


def _is_large(thing: tf.Tensor | tf.Variable) -> bool:
    return bool(thing.dtype.size * (thing.shape.num_elements() or 0) > MOST_BYTES)


@functools.cache
def _of_keras() -> frozenset[str]:
    """Return the names of what Keras itself keeps in a layer and in a model."""
    layer = keras.layers.Identity(name="names")
    given = keras.Input((1,), name="names_input")
    model = keras.Model(given, layer(given), name="names_model")
    plain = keras.Model(name="names_plain")
    return frozenset({*vars(layer), *vars(model), *vars(plain), "_build_shapes_dict"})


def text_of(graph: tf.Graph) -> str:
    """Return the text of a graph, without numbers that TensorFlow gives."""
    return _UNIQUE.sub("", str(graph.as_graph_def()))
