"""Describes an update rule as a program of element-wise operations, which the store compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticdl.errors import ModelError

MOST_NODES = 64
MOST_SLOTS = 8
OPERATIONS = {
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "power": 2,
    "minimum": 2,
    "maximum": 2,
    "less": 2,
    "less_equal": 2,
    "equal": 2,
    "negative": 1,
    "sqrt": 1,
    "abs": 1,
    "sign": 1,
    "exp": 1,
    "log": 1,
    "where": 3,
}
"""The element-wise operations of the store, each with its number of values.

Comparisons give 1 or 0.
"""
WEIGHT, GRADIENT, LEARNING_RATE, STEP = range(4)
"""The numbers of the first values of each program; the values of the slots follow."""


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """An operation on the values of some numbers, or a constant."""

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """An update rule in the form that the store reads.

    slots: The name and the first value of each slot.
    nodes: The values, each made of values before it. Their numbers follow those of weight,
        gradient, learning rate, step (from 1) and the slots.
    weight, new_slots: The numbers of the new values of weight and slots.
    """

    slots: tuple[tuple[str, float], ...]
    nodes: tuple[ProgramNode, ...]
    weight: int
    new_slots: tuple[int, ...]


class ProgramBuilder:
    """Builds a program; an operation that is used twice is computed once."""

    def __init__(self, slots: Mapping[str, float]) -> None:
        """Begin with the slots, each with its first value."""
        self._slots = {name: float(first) for name, first in slots.items()}
        self._nodes: list[ProgramNode] = []
        self._known: dict[ProgramNode, int] = {}

    def slot(self, name: str) -> int:
        """Return the number of a slot's value."""
        return STEP + 1 + list(self._slots).index(name)

    def constant(self, value: float) -> int:
        """Return the number of a constant."""
        return self._add(ProgramNode("constant", value=float(value)))

    def op(self, name: str, *args: int) -> int:
        """Return the number of an operation's result."""
        return self._add(ProgramNode(name, args))

    def program(self, weight: int, new_slots: Mapping[str, int]) -> Program:
        """Return the program, without operations that have no effect.

        Raises:
            ModelError: The program is longer than the store allows.
        """
        base = STEP + 1 + len(self._slots)
        ends = [weight, *(new_slots[name] for name in self._slots)]
        needed: set[int] = set()
        waiting = list(ends)
        while waiting:
            number = waiting.pop()
            if number >= base and number not in needed:
                needed.add(number)
                waiting += self._nodes[number - base].args
        # A value is made of values before it, so the order must stay.
        kept = sorted(needed)
        new = dict(zip(kept, range(base, base + len(kept)), strict=True))
        nodes = [self._nodes[number - base] for number in kept]
        nodes = [
            ProgramNode(node.op, tuple(new.get(arg, arg) for arg in node.args), node.value)
            for node in nodes
        ]
        if len(nodes) > MOST_NODES or len(self._slots) > MOST_SLOTS:
            raise ModelError(
                f"the update rule has {len(nodes)} operations and {len(self._slots)} slots; "
                f"expected at most {MOST_NODES} and {MOST_SLOTS}"
            )
        first, *others = (new.get(end, end) for end in ends)
        return Program(tuple(self._slots.items()), tuple(nodes), first, tuple(others))

    def _add(self, node: ProgramNode) -> int:
        if node not in self._known:
            self._known[node] = STEP + 1 + len(self._slots) + len(self._nodes)
            self._nodes.append(node)
        return self._known[node]


def unsupported(name: str, of: str) -> ModelError:
    """Return the error for an operation that the store does not have."""
    return ModelError(
        f"the update rule {of} uses {name}, which the ps replicas do not compute element by "
        f"element; expected arithmetic, comparisons, and {', '.join(_named(OPERATIONS))}"
    )


def _named(operations: Mapping[str, int]) -> Sequence[str]:
    arithmetic = (
        "add",
        "subtract",
        "multiply",
        "divide",
        "less",
        "less_equal",
        "equal",
        "negative",
    )
    return [name for name in operations if name not in arithmetic]
