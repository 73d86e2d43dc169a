"""The files of a trace: Parquet, written beside the training, one after the other."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.parquet import import_pyarrow
from elasticdl.data.strings import Array
from elasticdl.worker.spans import run_after_others

if TYPE_CHECKING:
    import pyarrow

    from elasticdl.packages.trace.tracer import TracedStep

log = logging.getLogger(__name__)

_MOST_BYTES = 32 << 20  # that wait to be written
_GROUP_SECONDS = 1.0  # what has come meanwhile is written together
_LAST_SECONDS = 20.0  # for what waits when the training has ended


class TraceFiles:
    """Takes traced steps and writes them; drops steps for which there is no room.

    A file gets its name when it is complete.
    """

    def __init__(self, folder: Path, worker_id: int, most_bytes: int, most_seconds: float) -> None:
        """Begin without a file.

        Args:
            folder: Gets the files.
            worker_id: The worker that trained the steps.
            most_bytes: A file with this many bytes is ended.
            most_seconds: A file of this age is ended.

        Raises:
            ConfigError: pyarrow is missing.
            OSError: The folder cannot be made.
        """
        self._arrow, self._parquet = import_pyarrow("traces")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._worker_id = folder, worker_id
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self._changed = threading.Condition()
        self._waiting: deque[tuple[TracedStep, int]] = deque()  # and how many were dropped before
        self._num_bytes = 0
        self._is_over = self._has_failed = False
        self.num_written = 0
        self.num_dropped = 0
        self._num_in_file = 0  # of those that are written: in the file that is not complete
        # Jobs may write to one folder, and in containers their processes have equal numbers.
        self._token, self._numbers = token_hex(4), count(1)
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._path = self._partial = folder
        self._since = 0.0
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def put(self, step: TracedStep) -> None:
        """Take a step to be written, or drop it."""
        with self._changed:
            # The limit keeps a slow disk from filling the memory: a trace may have gaps, and never
            # slows the training.
            if self._has_failed or self._num_bytes + step.num_bytes > _MOST_BYTES:
                self.num_dropped += 1
                return
            self._waiting.append((step, self.num_dropped))
            self._num_bytes += step.num_bytes
            self._changed.notify()

    def drop(self) -> None:
        """Count a step that could not be taken."""
        with self._changed:
            self.num_dropped += 1

    def close(self) -> None:
        """Write the steps that wait, within a limited time; log how many were written."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(_LAST_SECONDS)
        words = "the trace has %d minibatches, and %d were dropped; see %s"
        level = logging.WARNING if self.num_dropped else logging.INFO
        log.log(level, words, self.num_written, self.num_dropped, self._folder)

    def _run(self) -> None:
        run_after_others()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, _GROUP_SECONDS)
                steps, self._waiting = list(self._waiting), deque()
                self._num_bytes = 0
                is_last = self._is_over
            num_before = self.num_written
            try:
                if steps:
                    self._write(steps)
                self._end_if_due(is_last)
            except Exception as error:
                self._give_up(num_before + len(steps) - self.num_written)
                log.warning("the trace ends here: %s: %s", type(error).__name__, error)
                return
            if is_last:
                return

    def _write(self, steps: Sequence[tuple[TracedStep, int]]) -> None:
        table = table_of(self._arrow, self._worker_id, steps)
        if self._writer is not None and self._writer.schema != table.schema:
            # A Parquet file has one schema.
            self._end()  # a prediction has another shape, or a column is new
        if self._writer is None:
            name = f"worker-{self._worker_id}-{self._token}-{next(self._numbers):06}.parquet"
            self._path, self._partial = self._folder / name, self._folder / f".{name}.part"
            self._writer = self._parquet.ParquetWriter(self._partial, table.schema)
            self._since = time.monotonic()
        self._writer.write_table(table)
        self.num_written += len(steps)
        self._num_in_file += len(steps)

    def _give_up(self, num_left: int) -> None:
        """Remove the file that cannot be completed; its steps and those that are left are lost."""
        with self._changed:
            self._has_failed = True
            self.num_written -= self._num_in_file
            self.num_dropped += self._num_in_file + num_left
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer.is_open = False  # else it is closed once more when it is deleted
        with contextlib.suppress(OSError):
            self._partial.unlink()

    def _end_if_due(self, is_last: bool) -> None:
        if self._writer is None:
            return
        is_old = time.monotonic() - self._since >= self._most_seconds
        if is_last or is_old or self._partial.stat().st_size >= self._most_bytes:
            self._end()

    def _end(self) -> None:
        assert self._writer is not None
        self._writer.close()
        os.rename(self._partial, self._path)
        self._writer, self._num_in_file = None, 0


def table_of(arrow: Any, worker_id: int, steps: Sequence[tuple[TracedStep, int]]) -> pyarrow.Table:
    """Return a row for each record of traced steps.

    Args:
        arrow: The package.
        worker_id: The worker that trained the steps.
        steps: Each step, with the number of steps that were dropped before it.
    """
    counts = [step.num_records for step, _ in steps]
    columns: dict[str, Any] = {"worker": np.full(sum(counts), worker_id, np.int32)}
    for name in steps[0][0].numbers:
        columns[name] = np.repeat([step.numbers[name] for step, _ in steps], counts)
    columns["record"] = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
    columns["dropped"] = np.repeat([dropped for _, dropped in steps], counts)
    by_record = dict.fromkeys(name for step, _ in steps for name in step.by_record)
    for name in by_record:
        parts = [(step.by_record.get(name), step.num_records) for step, _ in steps]
        columns[name] = _lists(arrow, parts)
    for name in dict.fromkeys(name for step, _ in steps for name in step.whole):
        values = [
            step.whole[name].ravel() if record == 0 and name in step.whole else None
            for step, _ in steps
            for record in range(step.num_records)
        ]
        column = f"{name}_whole" if name in by_record else name
        kind = next(value.dtype for value in values if value is not None)
        columns[column] = arrow.array(values, arrow.list_(arrow.from_numpy_dtype(kind)))
    return arrow.table(columns)


def _lists(arrow: Any, parts: Sequence[tuple[Array | None, int]]) -> Any:
    """Return a column with one list for each record, null where a step has no such array."""
    arrays = [array for array, _ in parts if array is not None]
    values = np.concatenate([array.ravel() for array in arrays])
    lengths, valid = [], []
    for array, num_records in parts:
        size = 0 if array is None else array[0].size if num_records else 0
        lengths += [size] * num_records
        valid += [array is not None] * num_records
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = None if all(valid) else arrow.array([not each for each in valid])
    return arrow.ListArray.from_arrays(ends, arrow.array(values), mask=mask)
