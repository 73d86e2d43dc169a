"""Tables inside of a SavedModel, written part by part: no process has to hold one.

TensorFlow saves only variables whose values it has in memory. So a model is saved with tables of
one row, and the file of its variables is then written again with all rows. A variable may lie in it
as slices, and files of slices can be merged without reading them (`MergeV2Checkpoints`); whoever
loads the model reads each variable as one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from elasticdl.backends.base import Float32, Int64, TableSource
from elasticdl.data.strings import Array
from elasticdl.packages.keras import sorted_rows
from elasticdl.packages.keras.model.placed import LayerTable
from elasticdl.packages.keras.sorted_rows import SortedRows, sort_rows

_PREFIX = "variables"  # folder and file name of a SavedModel's variables
_FINGERPRINT = "fingerprint.pb"
_OF_VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"  # what TensorFlow adds to the path of a variable

Part = dict[str, Array]
"""Consecutive rows of each variable of a table, by its attribute."""


class _OrdinaryTable(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """All rows from id 0 on."""

    def __init__(self, num_ids: int, dim: int, unseen: float) -> None:
        super().__init__()
        self._num_ids, self._unseen = num_ids, unseen
        self.rows = _of_any_length(np.zeros((1, dim), np.float32))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.rows, ids)

    def parts(self, found: SortedRows) -> tuple[int, Iterator[Part]]:
        """Return the number of rows, and the rows; untrained rows are `unseen`."""
        dim = int(self.rows.shape[1])
        filled = _filled(found.parts, self._num_ids, dim, self._unseen)
        return self._num_ids, ({"rows": rows} for rows in filled)


class _SortedTable(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """The trained ids in ascending order and their rows; others read as `unseen`."""

    def __init__(self, dim: int, unseen: float) -> None:
        super().__init__()
        self._unseen = unseen
        self.keys = _of_any_length(np.zeros(1, np.int64))
        self.rows = _of_any_length(np.zeros((1, dim), np.float32))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(ids, [-1])
        place = tf.searchsorted(self.keys, flat)
        # An id above all keys has its place behind the last key, where tf.gather would fail.
        place = tf.minimum(place, tf.size(self.keys) - 1)
        known = tf.equal(tf.gather(self.keys, place), flat)
        rows = tf.where(known[:, None], tf.gather(self.rows, place), self._unseen)
        return tf.reshape(rows, tf.concat([tf.shape(ids), [self.rows.shape[1]]], 0))

    def parts(self, found: SortedRows) -> tuple[int, Iterator[Part]]:
        """Return how many rows there are, and keys and rows; of none, one that nobody asks for."""
        if found.num_rows == 0:
            nothing = np.full((1, self.rows.shape[1]), self._unseen, np.float32)
            return 1, iter([{"keys": np.array([-1], np.int64), "rows": nothing}])
        return found.num_rows, ({"keys": keys, "rows": rows} for keys, rows in found.parts)


SavedTable = _OrdinaryTable | _SortedTable


def saved_table(table: LayerTable) -> SavedTable:
    """Return a table that can be looked up in a graph; `write_rows` gives it its rows."""
    unseen = table.initializer.centre
    if table.input_dim is not None:
        return _OrdinaryTable(table.input_dim, table.dim, unseen)
    return _SortedTable(table.dim, unseen)


def write_rows(saved: Sequence[SavedTable], source: TableSource, directory: Path) -> None:
    """Write the rows of tables into a SavedModel.

    Args:
        saved: The tables, in their order; the model has them as its attribute `tables`.
        source: The source of their rows.
        directory: The SavedModel.
    """
    # A folder within the SavedModel is on the same disk, so the new files can be renamed into
    # place.
    with tempfile.TemporaryDirectory(dir=directory, prefix="rows-") as scratch:
        writer = _VariablesWriter(directory / _PREFIX, Path(scratch, _PREFIX))
        for number, table in enumerate(saved):
            folder = Path(scratch, f"table-{number}")
            folder.mkdir()
            found = sort_rows(source.scan(number), int(table.rows.shape[1]), folder)
            num_rows, parts = table.parts(found)
            writer.add(f"tables/{number}", num_rows, parts)
            folder.rmdir()
        writer.finish()
    _renew_fingerprint(directory)


class _VariablesWriter:
    """Writes the variables of a SavedModel again, some of them with other values."""

    def __init__(self, old: Path, new: Path) -> None:
        self._old, self._new = old, new
        self._written: set[str] = set()
        self._prefixes: list[str] = []

    def add(self, table: str, num_rows: int, parts: Iterator[Part]) -> None:
        """Write the variables of a table.

        Args:
            table: Path of the table in the model.
            num_rows: The number of rows of all parts together.
            parts: The rows, in their order.
        """
        start = 0
        for part in parts:
            arrays = {f"{table}/{name}{_OF_VARIABLE}": rows for name, rows in part.items()}
            slices = [_slice(num_rows, start, array) for array in arrays.values()]
            self._save(list(arrays), slices, list(arrays.values()))
            start += len(next(iter(arrays.values())))
        assert start == num_rows, f"{start} rows of {num_rows} were written"

    def finish(self) -> None:
        """Write the other variables as they were, and put the new file in the place of the old."""
        reader = tf.train.load_checkpoint(str(self._old / _PREFIX))
        kinds = reader.get_variable_to_dtype_map()
        unknown = self._written - kinds.keys()
        assert not unknown, f"the model has no variables {sorted(unknown)}"
        names = sorted(kinds.keys() - self._written)
        whole = [""] * len(names)
        values = tf.raw_ops.RestoreV2(
            prefix=str(self._old / _PREFIX),
            tensor_names=names,
            shape_and_slices=whole,
            dtypes=[kinds[name] for name in names],
        )
        self._save(names, whole, values)
        self._new.mkdir()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._prefixes, destination_prefix=str(self._new / _PREFIX)
        )
        shutil.rmtree(self._old)
        self._new.rename(self._old)

    def _save(self, names: list[str], slices: list[str], tensors: list[Array]) -> None:
        prefix = str(self._new.with_name(f"part-{len(self._prefixes):06d}") / _PREFIX)
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors
        )
        self._prefixes.append(prefix)
        self._written.update(names)


def _slice(num_rows: int, start: int, part: Array) -> str:
    """Say which slice of a variable a part is, as TensorFlow writes it: `100 8 0,50:0,8`."""
    others = part.shape[1:]
    shape = " ".join(map(str, (num_rows, *others)))
    return ":".join([f"{shape} {start},{len(part)}", *(f"0,{size}" for size in others)])


def _of_any_length(rows: Array) -> tf.Variable:
    # The model is saved with one row and loaded with all rows, so the number of rows is open.
    shape = tf.TensorShape([None, *rows.shape[1:]])
    return tf.Variable(rows, trainable=False, shape=shape)


def _filled(
    parts: Iterator[tuple[Int64, Float32]], num_ids: int, dim: int, unseen: float
) -> Iterator[Float32]:
    """Yield the rows of all ids from 0 on."""
    keys, rows = np.zeros(0, np.int64), np.zeros((0, dim), np.float32)
    length = max(1, sorted_rows.PART_BYTES // (4 * dim))
    for start in range(0, num_ids, length):
        end = min(num_ids, start + length)
        filled = np.full((end - start, dim), unseen, np.float32)
        while True:
            # Parts of keys and parts of ids end at different places, so a part may fill several.
            count = int(np.searchsorted(keys, end))
            filled[keys[:count] - start] = rows[:count]
            keys, rows = keys[count:], rows[count:]
            if len(keys) or (following := next(parts, None)) is None:
                break
            keys, rows = following
        yield filled


def _renew_fingerprint(directory: Path) -> None:
    """Say in the SavedModel's fingerprint what its variables are now, where it has one."""
    from tensorflow.core.protobuf import fingerprint_pb2

    path = directory / _FINGERPRINT
    if path.is_file():
        found = fingerprint_pb2.FingerprintDef.FromString(path.read_bytes())
        index = (directory / _PREFIX / f"{_PREFIX}.index").read_bytes()
        # The hash is that of the file of variables, which was written again.
        found.checkpoint_hash = hash_of(index)
        path.write_bytes(found.SerializeToString())


def hash_of(data: bytes) -> int:
    """Return FarmHash's `Fingerprint64`."""
    digest = tf.fingerprint([data], method="farmhash64")[0].numpy()
    return int.from_bytes(digest.tobytes(), "little")
