"""A user's own subclass of `keras.optimizers.Optimizer` as a program that the store runs.

Its `update_step` is traced on variables of a few elements; what the graph does to it, operation by
operation, is the rule. So the model file is the same in plain Keras.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.optimizers.program import (
    GRADIENT,
    LEARNING_RATE,
    STEP,
    WEIGHT,
    Program,
    ProgramBuilder,
    unsupported,
)
from elasticdl.packages.frameworks.user_code import user_code

Make = Callable[..., int]
"""Adds the operation of a node of the graph to a builder, given the values that it takes."""

Kind = tuple[str, int]
"""Name and rank of a variable."""

_TABLE: Kind = ("embeddings", 2)
_ITS_OWN = {
    *("update_step", "build", "get_config", "from_config", "save_own_variables"),
    *("exclude_from_weight_decay", "_use_weight_decay", "load_own_variables"),
    *("add_variable", "add_variable_from_reference", "add_optimizer_variables"),
    *("assign", "assign_add", "assign_sub"),
}
"""What a subclass may override: it is called here, or is of no matter to an update."""


def own_program(optimizer: keras.optimizers.Optimizer, kinds: Sequence[Kind] = ()) -> Program:
    """Return what `optimizer.update_step` does to a variable.

    Args:
        optimizer: An optimizer that is not built yet; it is built here, for variables like those of
            `kinds`.
        kinds: The kinds of variables that it updates, beside rows of tables.

    Raises:
        ModelError: It raises, computes something that is not element by element, or differs between
            variables or calls.
    """
    name = type(optimizer).__name__
    if keras.backend.backend() != "tensorflow":
        raise ModelError(
            f"optimizer {name} is one of your own, whose rule is read from a graph of TensorFlow: "
            f"expected one of Keras' with KERAS_BACKEND={keras.backend.backend()}, or "
            "KERAS_BACKEND=tensorflow"
        )
    for member in _overridden(type(optimizer)):
        raise ModelError(
            f"optimizer {name} overrides {member}, which ps replicas do not use; expected its rule "
            "in update_step(gradient, variable, learning_rate)"
        )
    if optimizer.built:
        raise ModelError(f"optimizer {name} is built already; expected one that nothing has used")
    variables = [_variable(*kind) for kind in dict.fromkeys([_TABLE, *kinds])]
    with user_code(f"{name}.build"):
        optimizer.build(variables)
    # The first variable is traced twice, because a rule that counts its calls differs then.
    first, *others = (_program(optimizer, variable) for variable in [*variables, variables[0]])
    for variable, other in zip([*variables[1:], variables[0]], others, strict=True):
        if other != first:
            raise ModelError(
                f"optimizer {name}: update_step does something else to {variable.name!r} than to "
                f"{variables[0].name!r}, or in another call; expected one rule for all variables"
            )
    return first


def _overridden(kind: type) -> list[str]:
    """Return the names of the members of Keras' optimizers that a user's subclass overrides."""
    own = itertools.takewhile(lambda c: not c.__module__.startswith("keras."), kind.__mro__)
    names = {name for each in own for name in vars(each)} - _ITS_OWN
    plain = keras.optimizers.Optimizer
    return sorted(
        f"{name}()" if callable(getattr(plain, name)) else name
        for name in names
        if hasattr(plain, name) and not name.startswith("__")
    )


def _variable(name: str, rank: int) -> keras.Variable:
    return keras.Variable(np.full([3, 2, 2, 2, 2, 2][:rank], 0.1, np.float32), name=name)


def _program(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> Program:
    name = type(optimizer).__name__

    def update(gradient: tf.Tensor, rate: tf.Tensor) -> None:
        optimizer.update_step(gradient, variable, rate)

    signature = tf.TensorSpec(variable.shape, tf.float32), tf.TensorSpec([], tf.float32)
    with user_code(f"{name}.update_step"):
        graph = tf.function(update, autograph=False).get_concrete_function(*signature).graph
    slots = _slots(optimizer, variable, graph)
    builder = ProgramBuilder({slot: first for slot, (first, _) in slots.items()})
    values = _Values(builder, name, graph)
    values.hold(variable, WEIGHT)
    # STEP counts from 1. During an update Keras' `iterations` is still one less.
    values.hold(optimizer.iterations, builder.op("subtract", STEP, builder.constant(1.0)))
    values.hold(optimizer._learning_rate, LEARNING_RATE)
    for slot, (_, held) in slots.items():
        values.hold(held, builder.slot(slot))
    values.note(graph.inputs[0], GRADIENT)
    values.note(graph.inputs[1], LEARNING_RATE)
    for node in graph.get_operations():
        values.run(node)
    new_slots = {slot: values.held(held) for slot, (_, held) in slots.items()}
    return builder.program(values.held(variable), new_slots)


def _slots(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable, graph: tf.Graph
) -> dict[str, tuple[float, keras.Variable]]:
    """Return the first value, and what holds it, of each slot that an update uses.

    Raises:
        ModelError: One is not as large as the variable, or does not begin with one number.
    """
    used = {id(outer) for outer, _ in graph.captures}
    given = {id(optimizer.iterations), id(optimizer._learning_rate)}
    found = {}
    for held in optimizer.variables:
        if id(held) in given or id(held.value.handle) not in used:
            continue
        values = set(held.numpy().ravel().tolist())
        if held.shape != variable.shape or len(values) != 1:
            raise ModelError(
                f"optimizer {type(optimizer).__name__} keeps {held.name!r} of shape "
                f"{tuple(held.shape)}, for a variable of shape {tuple(variable.shape)}; expected "
                "numbers beside each weight, all of which begin with one value"
            )
        found[held.name.removeprefix(f"{variable.name}_")] = values.pop(), held
    return found


class _Values:
    """Holds the computed values of a graph, and the values of its variables meanwhile."""

    def __init__(self, builder: ProgramBuilder, rule: str, graph: tf.Graph) -> None:
        self._builder, self._rule = builder, rule
        self._outer = {inner.name: outer for outer, inner in graph.captures}
        self._numbers: dict[str, int] = {}  # by the name of a tensor
        self._held: dict[int, int] = {}  # by the handle of a variable

    def hold(self, variable: keras.Variable | tf.Variable, number: int) -> None:
        """Note what a variable holds."""
        handle = getattr(getattr(variable, "value", None), "handle", None)
        self._held[id(handle)] = number

    def held(self, variable: keras.Variable) -> int:
        """Return what a variable holds now."""
        return self._held[id(variable.value.handle)]

    def note(self, tensor: tf.Tensor, number: int) -> None:
        """Note what a tensor is."""
        self._numbers[tensor.name] = number

    def run(self, node: tf.Operation) -> None:
        """Take in a node of the graph, after the nodes of its inputs.

        Raises:
            ModelError: Its operation does not work element by element.
        """
        if node.type in ("Placeholder", "NoOp"):
            return
        if node.type == "Const":
            self.note(node.outputs[0], self._constant(node))
            return
        if node.type in ("ReadVariableOp", *_ASSIGNS):
            self._use(node)
            return
        make = _NODES.get(node.type)
        if make is None:
            raise unsupported(f"TensorFlow's {node.type}", self._rule)
        if node.type == "Cast" and not _keeps_numbers(node):
            kinds = (node.inputs[0].dtype.name, node.outputs[0].dtype.name)
            raise unsupported("a cast of {} to {}".format(*kinds), self._rule)
        self.note(node.outputs[0], make(self._builder, *map(self._number, node.inputs)))

    def _use(self, node: tf.Operation) -> None:
        handle = id(self._outer.get(node.inputs[0].name))
        if handle not in self._held:
            raise unsupported(f"a variable that is not a slot ({node.name})", self._rule)
        if node.type == "ReadVariableOp":
            self.note(node.outputs[0], self._held[handle])
            return
        op = _ASSIGNS[node.type]
        value = self._number(node.inputs[1])
        self._held[handle] = self._builder.op(op, self._held[handle], value) if op else value

    def _constant(self, node: tf.Operation) -> int:
        value = np.asarray(tf.make_ndarray(node.get_attr("value")))
        if value.dtype.kind not in "fiub" or len(set(value.ravel().tolist())) != 1:
            raise unsupported(f"a constant of shape {value.shape} ({node.name})", self._rule)
        return self._builder.constant(float(value.ravel()[0]))

    def _number(self, tensor: tf.Tensor) -> int:
        if tensor.name not in self._numbers:
            raise unsupported(f"a tensor from outside ({tensor.name})", self._rule)
        return self._numbers[tensor.name]


_ASSIGNS = {
    "AssignVariableOp": "",
    "AssignAddVariableOp": "add",
    "AssignSubVariableOp": "subtract",
}


def _keeps_numbers(cast: tf.Operation) -> bool:
    """Return whether a cast leaves each number as it is, but for the rounding of float32."""
    given, made = cast.inputs[0].dtype, cast.outputs[0].dtype
    is_to_whole = made.is_integer and not given.is_floating
    return is_to_whole or made in (given, tf.float32, tf.float64)


def _op(name: str, *order: int) -> Make:
    """Return what makes an operation of the values in an order."""

    def make(builder: ProgramBuilder, *args: int) -> int:
        return builder.op(name, *(args[place] for place in order or range(len(args))))

    return make


def _one_by(name: str) -> Make:
    return lambda builder, a: builder.op(
        "divide", builder.constant(1.0), builder.op(name, a) if name else a
    )


def _not(builder: ProgramBuilder, a: int) -> int:
    return builder.op("subtract", builder.constant(1.0), a)


def _same(builder: ProgramBuilder, a: int) -> int:
    return a


# A program of the store has no booleans: 1.0 is true and 0.0 is false.
_NODES: dict[str, Make] = {
    "Add": _op("add"),
    "AddV2": _op("add"),
    "Sub": _op("subtract"),
    "Mul": _op("multiply"),
    "RealDiv": _op("divide"),
    "Pow": _op("power"),
    "Minimum": _op("minimum"),
    "Maximum": _op("maximum"),
    "Less": _op("less"),
    "LessEqual": _op("less_equal"),
    "Greater": _op("less", 1, 0),
    "GreaterEqual": _op("less_equal", 1, 0),
    "Equal": _op("equal"),
    "NotEqual": lambda builder, a, b: _not(builder, builder.op("equal", a, b)),
    "LogicalNot": _not,
    "LogicalAnd": _op("multiply"),
    "LogicalOr": _op("maximum"),
    "Neg": _op("negative"),
    "Sqrt": _op("sqrt"),
    "Rsqrt": _one_by("sqrt"),
    "Reciprocal": _one_by(""),
    "Square": lambda builder, a: builder.op("multiply", a, a),
    "Abs": _op("abs"),
    "Sign": _op("sign"),
    "Exp": _op("exp"),
    "Log": _op("log"),
    "SelectV2": _op("where"),
    "Cast": _same,
    "Identity": _same,
    "StopGradient": _same,
}
