"""What a request says and an answer has: records as JSON or Arrow <-> arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.served import FeatureSpec
from elasticdl.data.arrow_messages import read_stream
from elasticdl.errors import DataError

ARROW = "application/vnd.apache.arrow.stream"


def from_json(content: bytes, specs: Sequence[FeatureSpec]) -> tuple[dict[str, NDArray[Any]], bool]:
    """Read features; return them, and whether it is a single record.

    `{"instances": [RECORD, ...]}`, `{"instance": RECORD}`, or columns: `{"inputs": {NAME: [...]}}`.
    A record is `{NAME: VALUE}`, or the value alone where there is one feature.

    Raises:
        DataError: It is something else; says what.
    """
    try:
        said = json.loads(content)
    except ValueError as error:
        raise DataError(f"the request is no JSON: {error}") from error
    forms = [form for form in ("instances", "instance", "inputs") if _has(said, form)]
    if len(forms) != 1:
        raise DataError(
            'expected one of {"instances": [...]}, {"instance": ...} and {"inputs": {...}}'
        )
    given, form = said[forms[0]], forms[0]
    if form == "inputs":
        return _arrays(given if isinstance(given, dict) else {_only(specs): given}, specs), False
    records = given if form == "instances" else [given]
    if not isinstance(records, list) or not records:
        raise DataError(f'"{form}": expected a list of records, found {_short(given)}')
    return _arrays(_columns(records, specs), specs), form == "instance"


def to_json(
    outputs: Mapping[str, NDArray[Any]], is_single: bool, version: int, model_version: int
) -> bytes:
    """Write predictions: of one output its values, of several records `{NAME: VALUE}`.

    A float32 is written so that it is read as the same bits.
    """
    if len(outputs) == 1:
        (values,) = outputs.values()
        predictions = values.tolist()
    else:
        names, columns = list(outputs), [value.tolist() for value in outputs.values()]
        predictions = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    found = {"prediction": predictions[0]} if is_single else {"predictions": predictions}
    return json.dumps({**found, "version": version, "model_version": model_version}).encode()


def from_arrow(content: bytes, specs: Sequence[FeatureSpec]) -> dict[str, NDArray[Any]]:
    """Read features of a stream of record batches, whose columns have their names.

    Raises:
        DataError: It is none, or lacks a column.
    """
    try:
        table = read_stream(content)
    except DataError as error:
        raise DataError(f"the request: {error}") from error
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if column.null_count:
            raise DataError(f"feature {name!r}: expected no nulls, found {column.null_count}")
        columns[name] = _of_arrow(column)
    return _arrays(columns, specs)


def to_arrow(outputs: Mapping[str, NDArray[Any]], version: int, model_version: int) -> bytes:
    """Write predictions as a stream of one record batch; the schema's metadata has the version."""
    import pyarrow as pa

    arrays = []
    for values in outputs.values():
        array = pa.array(np.ascontiguousarray(values).reshape(-1))
        for length in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, length)
        arrays.append(array)
    notes = {"version": str(version), "model_version": str(model_version)}
    batch = pa.record_batch(arrays, names=list(outputs)).replace_schema_metadata(notes)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _of_arrow(column: Any) -> Any:
    """Return a column as an array, lists of one length as rows of it."""
    shape = [len(column)]
    while hasattr(column, "flatten") and (nested := _list_length(column)) is not None:
        shape.append(nested)
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _list_length(column: Any) -> int | None:
    import pyarrow as pa

    if isinstance(column, pa.FixedSizeListArray):
        return int(column.type.list_size)
    if not isinstance(column, pa.ListArray | pa.LargeListArray):
        return None
    lengths = {len(value) for value in column}
    if len(lengths) > 1:
        raise DataError("expected lists of one length in a column")
    return int(lengths.pop()) if lengths else 0


def _columns(records: list[Any], specs: Sequence[FeatureSpec]) -> dict[str, Any]:
    if not isinstance(records[0], dict):
        return {_only(specs): records}
    names = set(records[0])
    for number, record in enumerate(records):
        if not isinstance(record, dict) or set(record) != names:
            raise DataError(f"record {number}: expected the same features as record 0")
    return {name: [record[name] for record in records] for name in records[0]}


def _arrays(columns: Mapping[str, Any], specs: Sequence[FeatureSpec]) -> dict[str, NDArray[Any]]:
    known = [spec.name for spec in specs]
    if wrong := sorted(set(columns) - set(known)):
        raise DataError(f"there is no feature {wrong[0]!r}; the model takes {', '.join(known)}")
    if missing := [name for name in known if name not in columns]:
        raise DataError(f"feature {missing[0]!r} is missing; the model takes {', '.join(known)}")
    arrays = {spec.name: _array(spec, columns[spec.name]) for spec in specs}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"expected as many values of each feature, found {lengths}")
    return arrays


def _array(spec: FeatureSpec, values: Any) -> NDArray[Any]:
    """Return values as an array of a feature's type; (n,) goes for (n, 1)."""
    try:
        if spec.dtype == "str":
            array = np.asarray(values, object)
        else:
            found = np.asarray(values)
            wanted = np.dtype(spec.dtype)
            if wanted.kind in "iu" and found.dtype.kind == "f":
                raise DataError(f"feature {spec.name!r}: expected integers, found fractions")
            array = np.ascontiguousarray(found.astype(wanted))
            if wanted.kind in "iu" and not np.array_equal(array, found):
                raise DataError(f"feature {spec.name!r}: a number does not fit {spec.dtype}")
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"feature {spec.name!r}: expected {spec.dtype}, found {_short(values)}"
        ) from error
    if array.ndim == 1 and spec.shape == (1,):
        array = array.reshape(-1, 1)
    shape = array.shape[1:]
    fits = len(shape) == len(spec.shape) and all(
        wanted is None or found == wanted for found, wanted in zip(shape, spec.shape, strict=False)
    )
    if array.ndim == 0 or not fits:
        wanted_shape = ["n", *("any" if n is None else n for n in spec.shape)]
        raise DataError(
            f"feature {spec.name!r}: expected the shape {wanted_shape}, found {list(array.shape)}"
        )
    return array


def _has(said: Any, form: str) -> bool:
    return isinstance(said, dict) and form in said


def _only(specs: Sequence[FeatureSpec]) -> str:
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise DataError(f"expected records with the features {names}")
    return specs[0].name


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
