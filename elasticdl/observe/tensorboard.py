"""A job's numbers for TensorBoard, by tensorboardX, which needs no TensorFlow."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.job import JobStatus
from elasticdl.observe.curves import curves

if TYPE_CHECKING:  # it comes with an extra
    from tensorboardX import SummaryWriter

SECONDS_BETWEEN = 1.0

_FLUSH_SECONDS = 5
_MOST_WAITING = 100  # pictures; of a folder that does not answer the rest is left out
_CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)

_Picture = tuple[JobStatus, float | None]

ReadParameters = Callable[[], Mapping[str, NDArray[np.float32]]]
"""Returns parameters by name."""


class Summaries:
    """Writes pictures of a job into event files.

    The step of a number is how many updates the model had. What was not measured again is not
    written again. A thread writes: whoever takes pictures never waits for the disk, and a folder
    that cannot be written any more ends the summaries and nothing else.
    """

    def __init__(self, folder: Path) -> None:
        """Begin a file in a folder, which is made.

        Raises:
            ConfigError: tensorboardX is not installed, or the folder cannot be written to.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"--tensorboard_log_dir needs tensorboardX: {install('tensorboard')}"
            ) from error
        try:
            self._writer: SummaryWriter = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
        except OSError as error:
            raise ConfigError(
                f"--tensorboard_log_dir={folder}: cannot be written to: {error.strerror}"
            ) from error
        self._told: dict[str, tuple[object, ...]] = {}
        self._next = 0.0
        self._pictures: queue.SimpleQueue[_Picture | tuple[int, ReadParameters] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._write, name="tensorboard", daemon=True)
        self._thread.start()

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Have what is new of a picture written; at most once a second, but for the last one."""
        now = time.monotonic()
        if (now < self._next and not is_last) or self._pictures.qsize() > _MOST_WAITING:
            return
        self._next = now + SECONDS_BETWEEN
        self._pictures.put((status, learning_rate))

    def take_parameters(self, version: int, read: ReadParameters) -> None:
        """Have a histogram of each parameter written; `read` is called by the thread that writes.

        Args:
            version: Updates that they had.
            read: Raises an `ElasticdlError` if they cannot be read any more.
        """
        if self._pictures.qsize() <= _MOST_WAITING:
            self._pictures.put((version, read))

    def close(self) -> None:
        """Write the rest; of a disk that does not answer it is left."""
        self._pictures.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _write(self) -> None:
        try:
            while (picture := self._pictures.get()) is not None:
                match picture:
                    case (int(version), read):
                        self._add_histograms(version, read)
                    case (status, learning_rate):
                        self._add(status, learning_rate)
            self._writer.close()
        except Exception as error:
            log.warning("nothing more is written for TensorBoard: %s", error)

    def _add(self, status: JobStatus, learning_rate: float | None) -> None:
        for name, value, measured in curves(status, learning_rate):
            if self._told.get(name) == measured or not math.isfinite(value):
                continue
            self._told[name] = measured
            self._writer.add_scalar(name, value, status.model_version)

    def _add_histograms(self, version: int, read: ReadParameters) -> None:
        try:
            parameters = read()
        except ElasticdlError as error:  # the checkpoint is old, and was deleted meanwhile
            log.warning("no histograms of version %d are written: %s", version, error)
            return
        for name, values in parameters.items():
            finite = values[np.isfinite(values)]
            if finite.size:
                self._writer.add_histogram(name, finite, version)
