"""Own update rules, written in NumPy's operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

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

Update = Callable[..., tuple["TracedValue", Mapping[str, "TracedValue"]]]
"""`update(weight, gradient, slots, step, learning_rate)` -> (new weight, new slots by name)."""


class UpdateRule:
    """A user's own update rule, returned by `optimizer`; for array models and in PyTorch.

    `update` is called once, with values that record the operations on them: operators, comparisons,
    `np.sqrt`, `np.where` and the like. The recorded operations become a program that replicas and
    workers run over rows and vectors, so no update runs Python. The program computes in float32.
    Values that depend only on numbers, `step` and `learning_rate` have double precision.

    Example, Adagrad::

        def update(weight, gradient, slots, step, learning_rate):
            total = slots["total"] + gradient**2
            return weight - learning_rate * gradient / np.sqrt(total + 1e-7), {"total": total}

        def optimizer():
            return UpdateRule(update, {"total": 0.1}, learning_rate=0.05)

    Args:
        update: Is given the weight, the gradient, the slots by name, the number of the update from
            1, and the learning rate; returns the new weight and the new slots.
        slots: The name and the first value of each number that is stored beside a weight.
        learning_rate: The learning rate of all updates.

    Raises:
        ModelError: `update` raises, has an operation that is not element-wise, or leaves out a
            slot.
    """

    def __init__(
        self,
        update: Update,
        slots: Mapping[str, float] | None = None,
        learning_rate: float = 0.01,
    ) -> None:
        if not (math.isfinite(learning_rate) and learning_rate >= 0):
            raise ModelError(
                f"UpdateRule: learning_rate: expected 0 or more, found {learning_rate!r}"
            )
        self.learning_rate = float(learning_rate)
        self.program = traced(update, dict(slots or {}))


def traced(update: Update, slots: Mapping[str, float]) -> Program:
    """Return the program of a function.

    Raises:
        ModelError: The function raises, or has an operation that is not element-wise.
    """
    name = getattr(update, "__qualname__", repr(update))
    builder = ProgramBuilder(slots)
    given = {slot: TracedValue(builder, builder.slot(slot), name) for slot in slots}
    weight, gradient, step, rate = (
        TracedValue(builder, number, name) for number in (WEIGHT, GRADIENT, STEP, LEARNING_RATE)
    )
    try:
        found = update(weight, gradient, given, step, rate)
    # The values raise ModelError themselves, with a better message.
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the update rule {name} raises {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        raise ModelError(
            f"the update rule {name}: expected (new weight, new slots by name), found "
            f"{type(found).__name__}"
        )
    new, new_slots = found
    if set(new_slots) != set(slots):
        raise ModelError(
            f"the update rule {name}: expected new values of the slots {sorted(slots)}, found "
            f"those of {sorted(new_slots)}"
        )
    numbers = {slot: weight.number_of(value) for slot, value in new_slots.items()}
    return builder.program(weight.number_of(new), numbers)


class TracedValue(NDArrayOperatorsMixin):
    """Stands for the same value of each element, and notes the operations on it."""

    def __init__(self, builder: ProgramBuilder, number: int, rule: str) -> None:
        """Stand for the value with a number in a builder; `rule` is the function's name."""
        self._builder, self._number, self._rule = builder, number, rule

    def number_of(self, value: object) -> int:
        """Return the number of a value, or of a constant.

        Raises:
            ModelError: The value is something else.
        """
        if isinstance(value, TracedValue):
            return value._number
        if isinstance(value, int | float | np.integer | np.floating):
            return self._builder.constant(float(value))
        raise ModelError(
            f"the update rule {self._rule}: expected numbers, and values computed from weight, "
            f"gradient, slots, step and learning rate, found {type(value).__name__}"
        )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> TracedValue:
        """Note an operator, or a function of NumPy."""
        make = _UFUNCS.get(ufunc)
        if make is None or method != "__call__" or options:
            how = "" if method == "__call__" else f".{method}"
            with_options = f" with {', '.join(options)}" if options else ""
            raise unsupported(f"np.{ufunc.__name__}{how}{with_options}", self._rule)
        return self._made(make(self._builder, *map(self.number_of, inputs)))

    def __array_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...],
        options: object,
    ) -> TracedValue:
        """Note `np.where` and `np.clip`."""
        if options or len(args) != 3 or function not in (np.where, np.clip):
            raise unsupported(
                f"np.{function.__name__}{' with options' * bool(options)}", self._rule
            )
        a, b, c = map(self.number_of, args)
        op = self._builder.op
        if function is np.where:
            return self._made(op("where", a, b, c))
        return self._made(op("minimum", op("maximum", a, b), c))

    def _made(self, number: int) -> TracedValue:
        return TracedValue(self._builder, number, self._rule)

    def __bool__(self) -> NoReturn:
        """Refuse `if`, `and`, `or`: the answer differs between elements."""
        raise ModelError(
            f"the update rule {self._rule} asks whether a value is true, as `if`, `and`, `or`, "
            "min() and max() do, and that differs between elements; use np.where, np.minimum or "
            "np.maximum"
        )

    def __array__(self, *_options: object) -> NoReturn:
        """Refuse to be an array."""
        raise unsupported("the value as an array", self._rule)

    def __float__(self) -> NoReturn:
        """Refuse to be a single number."""
        raise unsupported("the value as a number of Python", self._rule)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse the attributes of an array."""
        # Python looks for special methods itself, and expects this error.
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(f".{name}", self._rule)

    def __getitem__(self, _key: object) -> NoReturn:
        """Refuse an index."""
        raise unsupported("a part of a value", self._rule)


def _power(builder: ProgramBuilder, base: int, exponent: int) -> int:
    """Return a power; "multiply" and "sqrt" replace two of them, faster and exactly."""
    for value, op, args in ((2.0, "multiply", (base, base)), (0.5, "sqrt", (base,))):
        if exponent == builder.constant(value):
            return builder.op(op, *args)
    return builder.op("power", base, exponent)


def _plain(name: str) -> Callable[..., int]:
    return lambda builder, *args: builder.op(name, *args)


_UFUNCS: dict[np.ufunc, Callable[..., int]] = {
    np.add: _plain("add"),
    np.subtract: _plain("subtract"),
    np.multiply: _plain("multiply"),
    np.true_divide: _plain("divide"),
    np.power: _power,
    np.float_power: _power,
    np.minimum: _plain("minimum"),
    np.maximum: _plain("maximum"),
    np.less: _plain("less"),
    np.less_equal: _plain("less_equal"),
    np.greater: lambda builder, a, b: builder.op("less", b, a),
    np.greater_equal: lambda builder, a, b: builder.op("less_equal", b, a),
    np.equal: _plain("equal"),
    np.not_equal: lambda builder, a, b: builder.op(
        "subtract", builder.constant(1.0), builder.op("equal", a, b)
    ),
    np.negative: _plain("negative"),
    np.positive: lambda builder, a: a,
    np.sqrt: _plain("sqrt"),
    np.square: lambda builder, a: builder.op("multiply", a, a),
    np.reciprocal: lambda builder, a: builder.op("divide", builder.constant(1.0), a),
    np.absolute: _plain("abs"),
    np.sign: _plain("sign"),
    np.exp: _plain("exp"),
    np.log: _plain("log"),
}
