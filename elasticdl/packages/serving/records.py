"""Converts between arrays and the records of requests and answers, in JSON or Arrow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import parse_request
from elasticdl.backends.served import FeatureSpec
from elasticdl.errors import DataError, RequestTooLargeError
from elasticdl.packages.serving.arrow_requests import read_columns

ARROW = "application/vnd.apache.arrow.stream"
_LETTERS = 24  # that a number of an answer takes in JSON, at the most


@dataclass(frozen=True, slots=True)
class Most:
    """Limits of a request and of an answer.

    num_bytes: The bytes of a request after unpacking.
    records: The records of a request.
    answer_bytes: The bytes of an answer.
    """

    num_bytes: int = 16 << 20
    records: int = 1 << 17
    answer_bytes: int = 64 << 20


def from_json(
    content: bytes, specs: Sequence[FeatureSpec], most: Most | None = None
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Read features; return them, and whether the request has a single record.

    `{"instances": [RECORD, ...]}`, `{"instance": RECORD}`, or columns: `{"inputs": {NAME: [...]}}`.
    A record is `{NAME: VALUE}`, or only the value if there is one feature.

    Raises:
        DataError: The content has another form; says which.
    """
    most = most or Most()
    features = [(spec.name, spec.dtype, list(spec.shape)) for spec in specs]
    columns, is_single = parse_request(content, features, most.records)
    arrays = {}
    for spec, (values, shape) in zip(specs, columns, strict=True):
        array = np.asarray(values, object if spec.dtype == "str" else None)
        arrays[spec.name] = _fitting(spec, array.reshape(shape))
    return arrays, is_single


def from_arrow(
    content: bytes, specs: Sequence[FeatureSpec], most: Most | None = None
) -> dict[str, NDArray[Any]]:
    """Read features from a stream of record batches, whose columns have the features' names.

    Raises:
        DataError: It is no such stream, lacks a column, or has a column of another type.
    """
    most = most or Most()
    columns = read_columns(content, specs, most.num_bytes, most.records)
    return {spec.name: _fitting(spec, columns[spec.name]) for spec in specs}


def to_json(
    outputs: Mapping[str, NDArray[Any]],
    is_single: bool,
    version: int,
    model_version: int,
    most: Most | None = None,
) -> bytes:
    """Write predictions: values if there is one output, `{NAME: VALUE}` for several.

    A float32 is written so that it is read back with the same bits. NaN and infinity become null.

    Raises:
        RequestTooLargeError: The answer is larger than allowed.
    """
    _check_answer(sum(values.size * _LETTERS for values in outputs.values()), most or Most())
    columns = {name: _said(values) for name, values in outputs.items()}
    if len(columns) == 1:
        (predictions,) = columns.values()
    else:
        rows = zip(*columns.values(), strict=True)
        predictions = [dict(zip(columns, row, strict=True)) for row in rows]
    found = {"prediction": predictions[0]} if is_single else {"predictions": predictions}
    said = {**found, "version": version, "model_version": model_version}
    return json.dumps(said, allow_nan=False).encode()


def to_arrow(
    outputs: Mapping[str, NDArray[Any]],
    version: int,
    model_version: int,
    most: Most | None = None,
) -> bytes:
    """Write predictions as a stream of one record batch; the schema's metadata has the version.

    Raises:
        RequestTooLargeError: The answer is larger than allowed.
    """
    import pyarrow as pa

    _check_answer(sum(values.nbytes for values in outputs.values()), most or Most())
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


def _check_answer(num_bytes: int, most: Most) -> None:
    if num_bytes > most.answer_bytes:
        raise RequestTooLargeError(
            f"the answer may have {num_bytes:,} bytes, expected {most.answer_bytes:,} at most; ask "
            "for fewer records at once"
        )


def _said(values: NDArray[Any]) -> list[Any]:
    """Return an output as values of JSON."""
    if values.dtype.kind == "O":  # text of TensorFlow
        words = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values.flat]
        values = np.array(words, object).reshape(values.shape)
    elif values.dtype.kind == "f" and not (is_number := np.isfinite(values)).all():
        values = values.astype(object)
        values[~is_number] = None
    said: list[Any] = values.tolist()
    return said


def _fitting(spec: FeatureSpec, found: NDArray[Any]) -> NDArray[Any]:
    """Return values as an array of a feature's type.

    Raises:
        DataError: A value does not fit; names its record.
    """
    if spec.dtype == "str":
        return found
    wanted = np.dtype(spec.dtype)
    # The cast is checked afterwards, so NumPy need not warn.
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(found.astype(wanted))
    # A cast wraps around in silence, so the value must be the same before and after.
    if wanted.kind in "iub":
        wrong = (array != found) | ((array < 0) != (found < 0))
    else:
        wrong = np.isinf(array) & np.isfinite(found)
    if wrong.any():
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise DataError(
            f"record {place[0]}, feature {spec.name!r}: {found[place]} does not fit {spec.dtype}"
        )
    return array
