"""A job's numbers for TensorBoard, by tensorboardX, which needs no TensorFlow."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.versions import MANIFEST, parse_manifest, version_folder
from elasticdl.distribution import install
from elasticdl.errors import CheckpointError, ConfigError, ElasticdlError
from elasticdl.job.status import JobStatus
from elasticdl.observe.kind import Kind
from elasticdl.observe.kinds import CheckpointWritten
from elasticdl.packages.trackers.outbox import Outbox, Picture, Untold

if TYPE_CHECKING:  # it comes with an extra
    from tensorboardX import SummaryWriter


_VECTORS = "-vectors.safetensors"
_PREFIX = 8  # bytes before the header of a safetensors file: its length


def dense_parameters(
    folder: Path, entries: Iterable[Mapping[str, Any]] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the dense parameters by name, each in its shape.

    Args:
        folder: A checkpoint. For a hybrid job the part with the dense parameters is read.
        entries: The manifest's entry of each replica, if the manifest is not written yet.

    Raises:
        CheckpointError: The parameters cannot be read.
    """
    if (folder / DENSE).is_dir():
        return dense_parameters(folder / DENSE)
    try:
        if entries is None:
            entries = parse_manifest((folder / MANIFEST).read_bytes())["replicas"]
        replicas = sorted(entries, key=lambda entry: int(entry["replica"]))
        parts = [_dense(folder / _vectors_of(entry)) for entry in replicas]
        # The replicas divide the flat vector, so a variable may lie in two files.
        whole = np.concatenate(parts)
        variables = replicas[0]["model"]["dense"]
        return {
            variable["name"]: _of(whole, int(variable["offset"]), variable["shape"])
            for variable in variables
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder}: its dense parameters cannot be read: {error}") from error


def _vectors_of(entry: Mapping[str, Any]) -> str:
    (name,) = (file["name"] for file in entry["files"] if file["name"].endswith(_VECTORS))
    return str(name)


def _dense(path: Path) -> NDArray[np.float32]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_PREFIX), "little")
        tensor = json.loads(file.read(length))["dense"]
        begin, end = tensor["data_offsets"]
        file.seek(_PREFIX + length + begin)
        return np.frombuffer(file.read(end - begin), dtype="<f4")


def _of(whole: NDArray[np.float32], offset: int, shape: list[int]) -> NDArray[np.float32]:
    return whole[offset : offset + int(np.prod(shape, dtype=np.int64))].reshape(shape)


SECONDS_BETWEEN = 1.0

_FLUSH_SECONDS = 5
_CLOSE_SECONDS = 5.0

log = logging.getLogger(__name__)

ReadParameters = Callable[[], Mapping[str, NDArray[np.float32]]]
"""Returns parameters by their names."""


class Summaries:
    """Writes pictures of a job into event files.

    The step of a number is the number of updates of the model. A number is written only if it was
    measured again. A thread writes, so the caller never waits for the disk. A folder that cannot be
    written any more ends the summaries and nothing else.
    """

    flag = "--tensorboard_log_dir"

    def __init__(self, folder: Path, histograms_of: Path | None = None, job: str = "") -> None:
        """Begin a file in a folder, which is made.

        Args:
            folder: The folder.
            histograms_of: The folder of checkpoints of which histograms are written.
            job: The identity of the job, which may be in the names of these checkpoints.

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
        self._histograms_of, self._job = histograms_of, job
        self._untold = Untold()
        self._outbox: Outbox[Picture | tuple[int, ReadParameters]] = Outbox(
            self.flag,
            self._send,
            end=self._writer.close,
            seconds_between=SECONDS_BETWEEN,
            is_sent_again=False,
        )

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Write the news of a picture; at most once a second, but always the last one."""
        self._outbox.put((status, learning_rate), may_be_left_out=not is_last)

    def take_parameters(self, version: int, read: ReadParameters) -> None:
        """Write a histogram of each parameter; the writing thread calls `read`.

        Args:
            version: The number of updates of the parameters.
            read: Raises an `ElasticdlError` if the parameters cannot be read any more.
        """
        self._outbox.put((version, read))

    def happened(self, kind: Kind) -> None:
        """Have histograms written of a checkpoint that is whole, if they are wanted."""
        directory = self._histograms_of
        if directory is not None and isinstance(kind, CheckpointWritten):
            folder = version_folder(directory, kind.version, self._job)
            assert isinstance(folder, Path), "the folder of checkpoints is one"
            self.take_parameters(kind.version, lambda: dense_parameters(folder))

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Write the rest; if the disk does not answer, the rest is dropped."""
        self._outbox.close(min(seconds, _CLOSE_SECONDS))

    def _send(self, item: Picture | tuple[int, ReadParameters]) -> None:
        match item:
            case (int(version), read):
                self._add_histograms(version, read)
            case (status, learning_rate):
                self._add((status, learning_rate))

    def _add(self, picture: Picture) -> None:
        for name, value in self._untold.of(picture).items():
            self._writer.add_scalar(name, value, picture[0].model_version)
        self._untold.told(picture)

    def _add_histograms(self, version: int, read: ReadParameters) -> None:
        try:
            parameters = read()
        except ElasticdlError as error:  # the checkpoint is old, and was deleted meanwhile
            log.warning("no histograms of version %d are written: %s", version, error)
            return
        for name, values in parameters.items():
            # The library raises an error for a histogram with NaN.
            finite = values[np.isfinite(values)]
            if finite.size:
                self._writer.add_histogram(name, finite, version)
