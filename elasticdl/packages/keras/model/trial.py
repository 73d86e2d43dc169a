"""Finds what calls of model and loss change in Python. Trials undo it, and no step may need it.

A worker calls both more often than there are steps, and a compiled step runs Python only when it is
traced. In a compiled step of plain Keras, a number that Python counts is a constant: it says how
often the model was called before. In a step by `run_eagerly` the number counts steps, but no other
worker, no successor and no checkpoint has it. Both are refused where a step depends on it.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.python_state import (
    MOST_BYTES,
    PythonState,
    compare_steps,
    is_same,
    shown,
)
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch

log = logging.getLogger(__name__)

COUNT_IN_A_LAYER = (
    "A number that steps change belongs in a variable of a layer (self.steps = "
    'self.add_weight(name="steps", initializer="zeros", trainable=False), and '
    "self.steps.assign_add(1.0) in its call): variables are carried"
)
_UNIQUE = re.compile(r"_\d+\b")  # what TensorFlow adds to the names of functions


def note(model: keras.Model, loss: object) -> PythonState:
    """Note all that a model and a loss can reach; variables of Keras are not Python's.

    In a `with` statement it is put back after the block.
    """
    return PythonState({"model": model, "loss": loss}, visit)


def leaves_a_trace(before: PythonState, after: PythonState) -> bool:
    """Whether a call has changed something in Python, or has drawn random numbers there."""
    return bool(before.differences(after) or after.drawn_since(before))


def check_steps(
    model: keras.Model,
    loss: object,
    minibatches: tuple[KerasMinibatch, KerasMinibatch],
    step: Callable[[KerasMinibatch], Sequence[object]],
) -> None:
    """Refuse a model or a loss whose step depends on values that Python keeps from earlier steps.

    Args:
        model: The user's.
        loss: The user's.
        minibatches: The minibatch of a first step, and that of the step that may depend on it.
        step: Makes a step from the initial values that updates nothing, or traces one; returns what
            is computed, as numbers or as text.

    Raises:
        ModelError: Names the values that are kept.
    """
    found = compare_steps(lambda: note(model, loss), step, *minibatches)
    depends = not all(map(_is_alike, *found.results))
    if found.kept and depends:
        raise ModelError(
            f"each step of training, or each time that one is compiled, changes "
            f"{shown(found.kept)}, which only Python has, and the step depends on it: other "
            "workers, a worker that replaces a lost one, and checkpoints do not have it, and a "
            f"compiled step keeps what was there by chance. {COUNT_IN_A_LAYER}"
        )
    if found.kept:
        log.warning(
            "each step of training, or each time that one is compiled, changes %s, which only "
            "Python has: each worker has its own, and a worker that replaces a lost one has a new "
            "one; training must not depend on it",
            shown(found.kept),
        )
    elif found.drawn and depends:
        log.warning(
            "the model or the loss draws from %s when a step is compiled, and not with each step: "
            "all steps have the number that was drawn then, and each worker has another one. "
            "keras.random, and layers such as Dropout, draw with each step",
            shown(found.drawn),
        )


def _is_alike(one: object, other: object) -> bool:
    if isinstance(one, str):
        return one == other
    return is_same(np.asarray(one, np.float64), np.asarray(other, np.float64))


def with_another(minibatch: KerasMinibatch) -> tuple[KerasMinibatch, KerasMinibatch]:
    """Return a minibatch, and one with smaller numbers in its features and the same ids."""
    end = len(minibatch.structure.feature_specs)
    features = [t * 0.5 if t.dtype.is_floating else t for t in minibatch.tensors[:end]]
    return minibatch, replace(minibatch, tensors=(*features, *minibatch.tensors[end:]))


def visit(state: PythonState, name: str, thing: object) -> bool:
    """Note an object of Keras or TensorFlow; see `python_state.Visit`."""
    if isinstance(thing, keras.layers.Layer):
        _visit_layer(state, name, thing)
    elif isinstance(thing, keras.Variable):
        pass  # `check_assigned` looks at assignments
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
    of_keras = _of_keras()
    if not layer.built:
        pass  # its first call makes attributes that stay
    elif is_of_a_library(layer):  # it may hold what a user wrote
        for key, value in vars(layer).items():
            if key not in of_keras and not key.startswith("_"):
                state.add(f"{name}.{key}", value)
    else:
        state.names(f"{name}.", vars(layer), lambda key: key in of_keras)
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
    """Return the names of the attributes that Keras itself keeps in a layer and in a model."""
    # Keras has no list of these names, so they are read from a layer and from two models. The given
    # names leave Keras' counters of layer names as they are.
    layer = keras.layers.Identity(name="names")
    given = keras.Input((1,), name="names_input")
    model = keras.Model(given, layer(given), name="names_model")
    plain = keras.Model(name="names_plain")
    return frozenset({*vars(layer), *vars(model), *vars(plain), "_build_shapes_dict"})


def text_of(graph: tf.Graph) -> str:
    """Return the text of a graph, without numbers that TensorFlow gives."""
    return _UNIQUE.sub("", str(graph.as_graph_def()))
