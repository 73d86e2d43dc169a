"""Looks at the data before the first record is trained: one worker, for a second or two."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.base import ChecksData, Minibatch, ModelDescription, Predictor, Trainer
from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Metadata
from elasticdl.data.open import format_of_whole
from elasticdl.data.parquet import ParquetReader
from elasticdl.data.paths import expand_paths, folders_left_out, read_twice
from elasticdl.data.sample import Sample, Words, take_sample
from elasticdl.data.shuffled import ShuffledReader
from elasticdl.data.split import SplitReader
from elasticdl.data.wanted import WantedColumn
from elasticdl.errors import ElasticdlError, in_short, place_of
from elasticdl.job import OF_MODEL, DataCheckTurn, Mode, Shard, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.observe.history.bound import SLOW_READING
from elasticdl.rpc.base import MasterClient
from elasticdl.runtime.ending import DaemonThread
from elasticdl.runtime.process import STOPPED_EXIT_CODE
from elasticdl.worker.findings import DataSet, Fed, findings, of_trained
from elasticdl.worker.metrics_check import check_metrics
from elasticdl.worker.records import located
from elasticdl.worker.trained_columns import read_trained_columns

_FEED_SECONDS = 1.0  # after the first minibatch, which a framework compiles: then it is enough
_MOST_SECONDS = 10.0  # of a `feed` that does not return
_PAUSE_SECONDS = 0.1
_TURN_SECONDS = 60.0  # for which others wait
_MOST_PER_RECORD = 64  # labels of more numbers are not classes

_KINDS = (
    (TaskKind.TRAINING, Mode.TRAINING),
    (TaskKind.EVALUATION, Mode.EVALUATION),
    (TaskKind.PREDICTION, Mode.PREDICTION),
)
_NAMES = {Mode.TRAINING: "training", Mode.EVALUATION: "validation", Mode.PREDICTION: "prediction"}


class NotedMetadata(Metadata):
    """Metadata that notes whether `feed` asked for the names of the columns."""

    __slots__ = ("was_asked",)
    was_asked: list[str]

    def __getattribute__(self, name: str) -> Any:
        if name in ("column_names", "column_dtypes"):
            object.__getattribute__(self, "was_asked").append(name)
        return object.__getattribute__(self, name)

    @classmethod
    def copy_of(cls, metadata: Metadata) -> NotedMetadata:
        """Return a copy that notes no question yet."""
        made = object.__new__(cls)
        object.__setattr__(made, "was_asked", [])
        for one in fields(Metadata):
            object.__setattr__(made, one.name, getattr(metadata, one.name))
        return made


def metadata_of(config: JobConfig, readers: Mapping[TaskKind, DataReader]) -> Metadata:
    """Return the metadata that `feed` gets, for each data set in its own mode."""
    of_modes = {
        mode: NotedMetadata.copy_of(readers[kind].metadata)
        for kind, mode in _KINDS
        if kind in readers
    }
    return replace(readers[_main(config)].metadata, of_modes=of_modes)


def _main(config: JobConfig) -> TaskKind:
    """Return the kind of task that the command is about."""
    return {
        "train": TaskKind.TRAINING,
        "evaluate": TaskKind.EVALUATION,
        "predict": TaskKind.PREDICTION,
    }[config.command]


def check_data(
    config: JobConfig,
    spec: ModelSpec,
    model: Predictor,
    metadata: Metadata,
    readers: Mapping[TaskKind, DataReader],
    master: MasterClient,
    worker_id: int,
    built: tuple[Trainer, ModelDescription] | None = None,
) -> None:
    """Look at the data and try the metrics, if it is this worker's turn; else wait for that worker.

    The findings are reported to the master.

    Raises:
        ElasticdlError: The job cannot give a useful result. The master knows, and ends the job.
    """
    # The worker that looks may be lost. The others then train without its result.
    deadline = time.monotonic() + _TURN_SECONDS
    while (turn := master.data_check_turn(worker_id)) is DataCheckTurn.WAIT:
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_SECONDS)
    if turn is DataCheckTurn.OVER:
        return
    try:
        lines = look_at_data(config, spec, model, metadata, readers)
        check_metrics(config, model, built, readers)
    except ElasticdlError as error:
        master.data_checked(worker_id, [], str(error))
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED_EXIT_CODE:
            raise  # a signal asks this process to end
        lines = [_not_looked(error)]
    master.data_checked(worker_id, [*(f"{OF_MODEL}{note}" for note in spec.notes), *lines])


def tell_notes(master: MasterClient, worker_id: int, notes: Sequence[str]) -> None:
    """Tell the master what a script's job does otherwise than expected, if nobody has."""
    if notes and master.data_check_turn(worker_id) is DataCheckTurn.YOURS:
        master.data_checked(worker_id, [f"{OF_MODEL}{note}" for note in notes])


def _not_looked(error: BaseException) -> str:
    """Return the line about a look that failed for another reason than the data."""
    where, what = place_of(error), f"{type(error).__name__}: {in_short(error, 200)}"
    return f"warning: nothing is said of the data: the look at it failed at {where}: {what}"


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
    for kind, mode in _KINDS:
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
            if kind is _main(config):
                raise
            raise type(error)(f"--{_NAMES[mode]}_data: {error}") from error
    main = sets.pop(_main(config), None)
    if main is None:
        return []
    asked = [getattr(metadata.of(mode), "was_asked", ()) for _, mode in _KINDS]
    known = model.vocabularies() if isinstance(model, ChecksData) else {}
    looked_up = [WantedColumn(name, tuple(words)) for name, words in known.items()]
    lines = findings(main, list(sets.values()), table, any(asked), looked_up)
    saved = config.checkpoint.saved_model
    trained_on = None if saved is None else read_trained_columns(Path(saved))
    if trained_on is not None:
        lines += of_trained(main, trained_on, any(asked) or table is not None)
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
