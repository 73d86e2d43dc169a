"""Looks at the data before the first record is trained, and at what `feed` makes of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.base import ChecksData, Minibatch, Predictor
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Metadata
from elasticdl.data.open import format_of_whole
from elasticdl.data.parquet import ParquetReader
from elasticdl.data.paths import expand_paths, folders_left_out, read_twice
from elasticdl.data.shuffled import ShuffledReader
from elasticdl.data.split import SplitReader
from elasticdl.data.wanted import WantedColumn
from elasticdl.errors import ElasticdlError
from elasticdl.job import SLOW_READING, Mode, Shard, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.data_tools.findings import DataSet, Fed, findings, of_trained
from elasticdl.packages.data_tools.sample import Sample, Words, take_sample
from elasticdl.runtime.ending import DaemonThread
from elasticdl.worker.data_check import KINDS, main_kind
from elasticdl.worker.records import located
from elasticdl.worker.trained_columns import read_trained_columns

_FEED_SECONDS = 1.0  # after the first minibatch, which a framework compiles: then it is enough
_MOST_SECONDS = 10.0  # of a `feed` that does not return
_MOST_PER_RECORD = 64  # labels of more numbers are not classes
_NAMES = {Mode.TRAINING: "training", Mode.EVALUATION: "validation", Mode.PREDICTION: "prediction"}


def look_at_data(
    config: JobConfig,
    spec: ModelSpec,
    model: Predictor,
    metadata: Metadata,
    readers: Mapping[TaskKind, DataReader],
) -> list[str]:
    """Return what there is to say about the data, a line each.

    Raises:
        ElasticdlError: The job cannot give a useful result with this data.
    """
    table = None if spec.table is None else spec.table.wanted()
    names = () if table is None else table.file_columns
    sets: dict[TaskKind, DataSet] = {}
    for kind, mode in KINDS:
        if kind not in readers:
            continue
        try:
            sample = take_sample(readers[kind], names)
            if sample.num_records:
                size = config.training.minibatch_size
                fed = _fed_in_time(model, readers[kind], sample, mode, size)
                if isinstance(model, ChecksData) and list(fed.labels) == [""]:
                    fed = replace(fed, label_problem=model.problem_of_labels(fed.labels[""]))
                sets[kind] = DataSet(_NAMES[mode], readers[kind].metadata, sample, fed)
        except ElasticdlError as error:
            if kind is main_kind(config):
                raise
            raise type(error)(f"--{_NAMES[mode]}_data: {error}") from error
    main = sets.pop(main_kind(config), None)
    if main is None:
        return []
    asked = [getattr(metadata.of(mode), "was_asked", ()) for _, mode in KINDS]
    known = model.vocabularies() if isinstance(model, ChecksData) else {}
    looked_up = [WantedColumn(name, tuple(words)) for name, words in known.items()]
    lines = findings(main, list(sets.values()), table, any(asked), looked_up)
    saved = config.checkpoint.saved_model
    trained_on = None if saved is None else read_trained_columns(Path(saved))
    if trained_on is not None:
        lines += of_trained(main, trained_on, any(asked) or table is not None, table)
    lines += _slow_reading(readers.get(TaskKind.TRAINING))
    return lines if spec.custom_data_reader is not None else [*lines, *_odd_places(config)]


def _slow_reading(reader: DataReader | None) -> Iterator[str]:
    """Yield a warning if records are shuffled and their pieces take long to find."""
    if not isinstance(reader, ShuffledReader):
        return
    source = reader.reader
    source = source.reader if isinstance(source, SplitReader) else source
    if isinstance(source, ParquetReader) and (why := source.cost_of_pieces()):
        yield f"warning: --shuffle=records is {SLOW_READING}{why}"


def _odd_places(config: JobConfig) -> Iterator[str]:
    """Yield warnings about files that are not read, and about files that are read twice."""
    data = config.data
    places = {mode: getattr(data, f"{name}_data") or "" for mode, name in _NAMES.items()}
    named = {os.path.abspath(place) for place in places.values() if place}
    for mode, place in places.items():
        if not place or "://" in place or format_of_whole(place, data.data_reader_params):
            continue
        if twice := read_twice(expand_paths(place)):
            yield (
                f"warning: --{_NAMES[mode]}_data: {', '.join(twice[:3])} and the same without its "
                "last ending are both read: if one is made of the other, its records come twice"
            )
        left_out = [f for f in folders_left_out(place) if os.path.abspath(f) not in named]
        if left_out:
            yield (
                f"warning: --{_NAMES[mode]}_data: the files in {', '.join(left_out[:3])} are not "
                "read: of a folder its own files are taken; those below it, too, by "
                f"{os.path.join(place, '**', '*')}"
            )


def _fed_in_time(
    model: Predictor, reader: DataReader, sample: Sample, mode: Mode, minibatch_size: int
) -> Fed:
    """Run `feed` over a sample. If `feed` does not return, the look ends and the job goes on."""
    found: list[Fed | BaseException] = []

    def run() -> None:
        try:
            found.append(_fed(model, reader, sample, mode, minibatch_size))
        except BaseException as error:  # raised by whoever waits
            found.append(error)

    # The `feed` may draw random numbers. The generators are set back, so the look does not change
    # what the job draws later.
    drawn = random.getstate(), np.random.get_state()
    thread = DaemonThread(run, "data check")
    thread.start()
    thread.join(_MOST_SECONDS)
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    if not found:
        first = sample.pieces[0][0]
        return Fed(
            problem=f"feed did not return within {_MOST_SECONDS:.0f} s ({first.name}, from record "
            f"{first.start} on)"
        )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _fed(
    model: Predictor, reader: DataReader, sample: Sample, mode: Mode, minibatch_size: int
) -> Fed:
    """Return what `feed` makes of the pieces, until the time is over.

    Raises:
        ElasticdlError: `feed` fails with every piece, as with records of another kind. If only some
            pieces fail, the task that meets them reports it.
    """
    deadline: float | None = None
    gathered, errors = _Gathered(), []
    for shard, chunks in sample.pieces:
        try:
            for minibatch in model.minibatches(iter(chunks), mode, minibatch_size, seed=0):
                gathered.add(minibatch)
                deadline = deadline or time.monotonic() + _FEED_SECONDS
                if time.monotonic() > deadline:
                    break
        except ElasticdlError as error:
            errors.append((shard, located(reader, shard, error)))
        if deadline and time.monotonic() > deadline:
            break
    if errors and deadline is None:
        raise errors[0][1]
    return gathered.fed(_said(*errors[0]) if errors else "")


def _said(shard: Shard, error: Exception) -> str:
    where = "" if shard.name in str(error) else f"{shard.name} [{shard.start}, {shard.end}): "
    return f"{where}{error}"


class _Gathered:
    """Gathers labels, words and NaN of minibatches, if they are plain arrays."""

    def __init__(self) -> None:
        self._labels: dict[str, list[NDArray[Any]]] = {}
        self._words: dict[str, Words] = {}
        self._not_a_number: dict[str, tuple[int, int]] = {}

    def add(self, minibatch: Minibatch) -> None:
        for name, labels in _named(minibatch.labels):
            if labels.dtype.kind in "biuf" and labels.size <= _MOST_PER_RECORD * len(labels):
                self._labels.setdefault(name, []).append(labels)
        for name, values in _named(minibatch.features):
            if values.dtype.kind == "f":
                bad, count = self._not_a_number.get(name, (0, 0))
                found = int(np.isnan(values).sum())
                self._not_a_number[name] = bad + found, count + values.size
            elif values.size == len(values):
                self._words.setdefault(name, []).extend(map(_word, values.ravel().tolist()))

    def fed(self, problem: str) -> Fed:
        labels = {
            name: np.concatenate(parts)
            for name, parts in self._labels.items()
            if len({part.shape[1:] for part in parts}) == 1  # lists of labels may differ in length
        }
        return Fed(labels, self._words, not_a_number=self._not_a_number, problem=problem)


def _word(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _named(structure: Any, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a nested structure by their names; other values are left out."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from _named(value, f"{name}/{key}" if name else str(key))
    elif isinstance(structure, tuple | list):
        for number, value in enumerate(structure):
            yield from _named(value, f"{name}/{number}" if name else str(number))
    elif hasattr(structure, "shape"):
        try:
            found = np.asarray(structure)
        except Exception:  # sparse and ragged tensors, each in its framework's way
            return
        if found.ndim and len(found):
            yield name, found
