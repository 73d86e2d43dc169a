"""Declares the data of this package: topics of Kafka, and data that the job captures."""

from __future__ import annotations

from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Stream
from elasticdl.data.kinds import DataSource, ReadOnce
from elasticdl.packages.streams.capture.process import CaptureProcess, capture_all
from elasticdl.packages.streams.capture.reader import CapturedReader, CapturedStream, remove
from elasticdl.packages.streams.capture.settings import (
    folder_of,
    is_captured,
    is_captured_as_it_trains,
)
from elasticdl.packages.streams.kafka_reader import KafkaReader
from elasticdl.packages.streams.topic import is_topic, parse


class _CapturedData:
    """The records of `--reader_command`, or of a reader with a state (`ReadOnce`)."""

    def is_used_by(self, config: JobConfig) -> bool:
        return is_captured(config)

    def is_cut_as_it_comes(self, config: JobConfig) -> bool:
        return is_captured_as_it_trains(config)

    def read_to_end(self, config: JobConfig) -> None:
        capture_all(config)

    def reader(self, config: JobConfig) -> DataReader:
        return CapturedReader(folder_of(config))

    def stream(self, config: JobConfig) -> Stream:
        return CapturedStream(folder_of(config), CaptureProcess(config))

    def remove(self, config: JobConfig) -> None:
        remove(folder_of(config))


KAFKA = DataSource(is_topic, KafkaReader.from_params, stream=parse)
CAPTURED: ReadOnce = _CapturedData()
