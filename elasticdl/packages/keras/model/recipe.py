"""Records how a tensor of ids is computed, so that two traces of a model can be compared.

The ids of a minibatch are found by one trace, and its step is another. Rows go to the right places
only if both compute the same ids. Mostly the traces prove it: they have the same operations on the
same inputs, and none of these may give another result when it runs again. If it does not follow (a
Python function, a variable, a random source), the step returns its ids, and they are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Int64
from elasticdl.errors import ModelError

Recipe = tuple[object, ...]


class Leaves:
    """The inputs of a trace by their roles: equal for traces with the same inputs.

    Args:
        dense: The flat dense vector.
        state: The flat state vector.
        seed: The seed of the minibatch.
        features: The tensors of its features.
    """

    def __init__(
        self, dense: tf.Tensor, state: tf.Tensor, seed: tf.Tensor, features: Iterable[tf.Tensor]
    ) -> None:
        self._labels: dict[str, object] = {
            dense.name: "dense",
            state.name: "state",
            seed.name: "seed",
        }
        self._labels |= {tensor.name: number for number, tensor in enumerate(features)}

    def add_rows(self, rows: tf.Tensor, site: int) -> None:
        """Note the rows of a lookup as an input."""
        self._labels[rows.name] = ("rows", site)

    def recipe(self, tensor: tf.Tensor) -> Recipe | None:
        """Return how a tensor is computed of these; None where that may differ from run to run."""
        captured = {inner.name: outer for outer, inner in tensor.graph.captures}
        numbers: dict[str, int] = {}
        steps: list[tuple[object, tf.Operation]] = []
        todo = [tensor]
        while todo:
            one = todo.pop()
            op = one.op
            if one.name in self._labels or op.name in numbers:
                continue
            # Names differ between two traces; the order of the walk does not.
            numbers[op.name] = len(numbers)
            if one.name in captured:
                steps.append(("captured", id(captured[one.name])))
                continue
            if _may_differ(op):
                return None
            steps.append((_attributes(op), op))
            todo.extend(reversed(op.inputs))

        def place(source: tf.Tensor) -> object:
            label = self._labels.get(source.name)
            return (numbers[source.op.name], source.value_index) if label is None else label

        return (
            place(tensor),
            *(
                (what, *map(place, op.inputs)) if what != "captured" else (what, op)
                for what, op in steps
            ),
        )


class AskedIds:
    """The ids that a step asks for by itself, where they are not known to be those pulled.

    Args:
        recipes: The recipes of each site, as the trace that finds the ids has it.
        stages: The stages of each site.
        names: The names of each site's layer.
        leaves: The leaves of the step's trace.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe | None],
        stages: Sequence[int],
        names: Sequence[str],
        leaves: Leaves,
    ) -> None:
        self._recipes, self._stages, self._names = recipes, stages, names
        self._leaves = leaves
        self._sites: list[int] = []
        self.tensors: list[tf.Tensor] = []  # while tracing

    def note(self, site: int, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Take the ids of a site, and the rows that were given for them.

        Raises:
            ModelError: They are others than in the trace that finds them, and depend on parameters.
        """
        expected = self._recipes[site]
        if expected is None or self._leaves.recipe(ids) != expected:
            if self._stages[site] == 0:
                self._sites.append(site)
                self.tensors.append(ids)
            elif expected is not None:
                raise ModelError(not_of_the_record(self._names[site]))
        self._leaves.add_rows(rows, site)

    @property
    def is_needed(self) -> bool:
        """Whether there are any."""
        return bool(self._sites)

    def check(self, pulled: Sequence[Int64], asked: Sequence[tf.Tensor]) -> None:
        """Compare the ids that were pulled with the ids that a step has asked for.

        Raises:
            ModelError: They differ; names the layer.
        """
        for site, ids in zip(self._sites, asked, strict=True):
            if not np.array_equal(pulled[site], np.asarray(ids)):
                raise ModelError(not_of_the_record(self._names[site]))


def not_of_the_record(name: str) -> str:
    """Say that ids of a layer are others each time they are computed."""
    return (
        f"Embedding {name!r}: its ids are others each time that they are computed of the same "
        "records, so rows cannot be looked up before the step. Do they come of a random source, of "
        "Python or NumPy, of a variable, or of the time? Make them in feed; draw with a "
        "keras.random.SeedGenerator that the layer makes in __init__; or say --run_eagerly, which "
        "looks rows up within the step"
    )


def _may_differ(op: tf.Operation) -> bool:
    if op.op_def is None or op.op_def.is_stateful or op.type == "Placeholder":
        return True
    # A function may hold any operation, so ids from one are compared when they run.
    return bool(functions_of(op))


def functions_of(node: tf.compat.v1.NodeDef) -> set[str]:
    """Return the names of the functions that an operation, or a node of a function, calls."""
    found: set[str] = set()
    for attribute in getattr(node, "node_def", node).attr.values():
        if attribute.WhichOneof("value") == "func":
            found.add(attribute.func.name)
        found.update(function.name for function in attribute.list.func)
    return found


def nodes_within(graph: tf.Graph, names: set[str]) -> Iterator[tf.compat.v1.NodeDef]:
    """Yield the nodes of functions of a graph, and of those that they call."""
    library = {f.signature.name: f for f in graph.as_graph_def().library.function}
    todo, seen = list(names), set(names)
    while todo:
        function = library.get(todo.pop())
        for node in () if function is None else function.node_def:
            yield node
            called = functions_of(node) - seen
            seen |= called
            todo += called


def _attributes(op: tf.Operation) -> bytes:
    """Return type and attributes of an operation, without attributes of its graph alone."""
    node = type(op.node_def)()
    node.op = op.type
    for key, value in op.node_def.attr.items():
        # TensorFlow keeps notes about a graph in attributes that begin with an underscore.
        if not key.startswith("_"):
            node.attr[key].CopyFrom(value)
    return bytes(node.SerializeToString(deterministic=True))
