"""A model as an export has it, without rows: the seam that each framework fills."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elasticdl.backends.base import Float32, Int64
from elasticdl.backends.known import known, listed
from elasticdl.data.strings import Array
from elasticdl.distribution import how_to_get
from elasticdl.errors import DataError, ExportError


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A feature that a model takes.

    dtype: The dtype in NumPy's words; "str" for text or bytes.
    shape: Of one record; None where it may be of any length.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class ServedModel(Protocol):
    """Scores features, given the rows that they ask for. For one thread at a time."""

    @property
    def features(self) -> Sequence[FeatureSpec]:
        """What it takes. A model that takes a single array has one feature."""
        ...

    @property
    def lookups(self) -> Sequence[str]:
        """The table of each lookup."""
        ...

    @property
    def num_ids(self) -> Mapping[str, int]:
        """The limit of the ids of each table that has such a limit."""
        ...

    def set_parameters(self, dense: Float32, state: Float32) -> None:
        """Give it the dense parameters and the state of another version.

        Raises:
            ExportError: They have another length.
        """
        ...

    def ids(self, features: Mapping[str, Array]) -> list[Int64]:
        """Return the ids of each lookup.

        Raises:
            DataError: The model cannot be called on these features.
        """
        ...

    def score(self, features: Mapping[str, Array], rows: Sequence[Float32]) -> dict[str, Array]:
        """Return the outputs by name, given the rows of each lookup: the shape of its ids, dim.

        Raises:
            DataError: The model cannot be called on these features.
        """
        ...


def num_ids(tables: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return `ServedModel.num_ids` of the tables of `model.json`."""
    return {t["name"]: t["input_dim"] for t in tables if t["input_dim"] is not None}


def not_scored(error: Exception) -> DataError:
    """Return the error for a request whose features the model refuses."""
    return DataError(f"the model cannot score it: {' '.join(str(error).split())[:300]}")


def load_served(folder: Path) -> ServedModel:
    """Load a model with the framework that it was made with.

    Raises:
        ExportError: The folder has no model that can be served, or its framework is missing here.
    """
    with_programs = [backend for backend in known().values() if backend.program]
    for backend in with_programs:
        if (folder / backend.program).is_file():
            try:
                return backend.served(folder)
            except ModuleNotFoundError as error:
                remedy = how_to_get(error.name or "", sys.version_info[:2])
                raise ExportError(
                    f"{folder}: {error}, which its model needs{remedy and f'; {remedy}'}"
                ) from error
    names = [f"{each.name} ({Path(each.program).parts[0]})" for each in with_programs]
    raise ExportError(
        f"{folder}: expected the program of a model in {listed(names) or 'a framework'}; a model "
        "given as functions on arrays has none"
    )


def outputs_by_name(outputs: Any, names: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Return the parts of a structure of outputs by name: a dict's keys, joined by `_`.

    Parts of a dict are in the order of their names, those that are no structures first. If two
    parts have the same name, the later one gets a number too.

    Args:
        outputs: The outputs of a model: tensors in dicts, tuples and lists.
        names: The names of outputs that are no dict, if there are as many; otherwise they are
            numbered.
        prefix: Of all names.
    """
    if isinstance(outputs, Mapping):
        # A SavedModel gives the keys in another order in each process.
        pairs = [(str(key), part) for key, part in outputs.items()]
        pairs.sort(key=lambda pair: (isinstance(pair[1], Mapping | tuple | list), pair[0]))
    elif isinstance(outputs, tuple | list):
        before = "" if prefix else "output_"
        numbered = [f"{before}{k}" for k in range(len(outputs))]
        pairs = list(zip(names if len(names) == len(outputs) else numbered, outputs, strict=True))
    else:
        return {prefix or (names[0] if len(names) == 1 else "output"): outputs}
    found: dict[str, Any] = {}
    for key, part in pairs:
        name = f"{prefix}_{key}" if prefix else key
        of_part = {} if part is None else outputs_by_name(part, (), name)
        for plain, value in of_part.items():
            same = itertools.chain([plain], (f"{plain}_{k}" for k in itertools.count(1)))
            found[next(one for one in same if one not in found)] = value
    return found


Shapes = Sequence[Sequence[int]]


def parts(
    folder: Path, shapes: tuple[Shapes, Shapes], dense: Float32, state: Float32
) -> tuple[list[Float32], list[Float32]]:
    """Cut the flat vectors of a model into arrays of its shapes.

    Args:
        folder: The folder of the model, for messages.
        shapes: The shapes of the dense parameters, and those of the state.
        dense: The vector of the dense parameters.
        state: The vector of the state.

    Raises:
        ExportError: They have other lengths.
    """
    expected = [sum(int(np.prod(shape, dtype=np.int64)) for shape in of) for of in shapes]
    if [dense.size, state.size] != expected:
        raise ExportError(
            f"{folder}: expected {expected[0]} dense parameters and {expected[1]} of state, found "
            f"{dense.size} and {state.size}"
        )
    return _cut(dense, shapes[0]), _cut(state, shapes[1])


def _cut(flat: Float32, shapes: Shapes) -> list[Float32]:
    ends = np.cumsum([int(np.prod(shape, dtype=np.int64)) for shape in shapes]).tolist()
    starts = [0, *ends][: len(ends)]
    return [
        flat[start:end].reshape(shape)
        for start, end, shape in zip(starts, ends, shapes, strict=True)
    ]
