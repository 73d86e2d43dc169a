"""The records that a worker reads, and the seed for their order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from elasticdl.backends.base import Minibatch, Predictor
from elasticdl.data.base import DataReader, HasHoles, HasPlaces, Records, Stream, all_of
from elasticdl.data.shuffled import ShuffledReader
from elasticdl.data.split import SplitReader
from elasticdl.errors import DataError, ModelError
from elasticdl.job import Mode, Shard, Task
from elasticdl.runtime.process import BUILDS_FROM

log = logging.getLogger(__name__)

_MAX_SAMPLE_RECORDS = 65_536  # read at once, in search of a first minibatch
_PAUSE_SECONDS = 1.0  # before what has arrived is looked at again


def task_seed(job_seed: int, task_id: int) -> int:
    """Return the seed of a task's shuffle: the same in every worker and for every lease.

    This is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
    generators", 2014) over both numbers; 63 bits.
    """
    mask = (1 << 64) - 1
    z = (job_seed * 0x9E3779B97F4A7C15 + task_id + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return (z ^ (z >> 31)) >> 1


def sample_minibatch(
    reader: DataReader, model: Predictor, mode: Mode, minibatch_size: int
) -> Minibatch:
    """Return the first minibatch of a source, from which a model is built.

    A `feed` may leave out the first records, or all records of a shard.

    Raises:
        DataError: The source has no records, or `feed` leaves out all of them.
    """
    is_endless = isinstance(reader, Stream) and reader.is_endless
    while True:
        found = _first_minibatch(reader, model, mode, minibatch_size)
        if isinstance(found, Minibatch):
            return found
        if not is_endless:
            break
        log.info("no message has arrived yet from which the model could be built; waiting")
        time.sleep(_PAUSE_SECONDS)
    if found:
        raise DataError(
            f"feed made no example of any of the {found:,} records in mode {mode}, so there "
            "is none to build the model from"
        )
    raise DataError("expected at least one record to build the model from, found none")


def _first_minibatch(
    reader: DataReader, model: Predictor, mode: Mode, minibatch_size: int
) -> Minibatch | int:
    """Return the first minibatch of a source; if there is none, the number of records."""
    num_records = 0
    for shard in reader.shards():
        # The part grows: a `feed` that leaves most records out needs more of them, and a usual one
        # only a minibatch.
        start, size = shard.start, minibatch_size
        while start < shard.end:
            part = Shard(shard.name, start, min(shard.end, start + size))
            log.info("%s%s [%d, %d)", BUILDS_FROM, part.name, part.start, part.end)
            try:
                for minibatch in model.minibatches(reader.read(part), mode, minibatch_size, seed=0):
                    return minibatch
            except DataError as error:
                if error.record is None:
                    raise
                raise _with_place(reader, part, error, error.record) from error
            num_records += part.num_records
            start, size = part.end, min(2 * size, _MAX_SAMPLE_RECORDS)
    return num_records


def _with_place(reader: DataReader, shard: Shard, error: DataError, record: int) -> DataError:
    """Return the error of a record with its file and line, which `feed` does not know."""
    name, number, source = shard.name, record, reader
    if isinstance(reader, ShuffledReader):
        name, number = reader.place_of(record)
        source = reader.reader
        if isinstance(source, SplitReader):
            number = source.number_of(name, number)
    said = str(error)
    if isinstance(source, HasPlaces) and "line " not in said.partition(": ")[2][:5]:
        said = f"{name}: {source.place(name, number)}: {said}"
    elif isinstance(reader, ShuffledReader):
        said = f"{said} (record {number} of {name})"
    elif name not in said:
        said = f"{name}: {said}"
    return DataError(said, record, error.is_certain)


def read_all(reader: DataReader, task: Task, late_before: float = 0.0) -> Iterator[Records]:
    """Return the records of a task, and check that they are all of it and no more.

    Args:
        reader: What reads.
        task: The task.
        late_before: Messages of a stream with an earlier event time are late.

    Raises:
        DataError: The reader gave another number of records.
    """
    if isinstance(reader, ShuffledReader):
        reader = reader.of_epoch(task.epoch)
    if isinstance(reader, HasHoles):
        return reader.read(task.shard, late_before)
    return all_of(reader.read(task.shard), task.shard, type(reader).__name__)


def with_ends(minibatches: Iterator[Minibatch]) -> Iterator[tuple[Minibatch, bool]]:
    """Tell for each minibatch of a task whether it is the last one; makes one minibatch ahead.

    Raises:
        ModelError: There is no minibatch. An update of a deterministic job needs some of each of
            its tasks.
    """
    before = next(minibatches, None)
    if before is None:
        raise ModelError(
            "feed made no minibatch of the task; with --deterministic it has to make one at "
            "least: give tasks more records, or leave records out ahead of training"
        )
    for minibatch in minibatches:
        yield before, False
        before = minibatch
    yield before, True


def located(reader: DataReader | None, shard: Shard, error: Exception) -> Exception:
    """Return an error of a task's data with the file of the record that it names."""
    if reader is None or not isinstance(error, DataError) or error.record is None:
        return error
    return _with_place(reader, shard, error, error.record)
