"""Reads the messages of a Kafka topic as records: each partition is a shard.

A shard is a range of positions. Some positions have no record: transactions and compaction leave
holes. So a range is read up to its last position, and its records are counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elasticdl.data.base import Metadata, Records
from elasticdl.data.params import Params
from elasticdl.errors import AwayError, DataError
from elasticdl.job import Shard
from elasticdl.packages.streams.kafka import Extent, Kafka, import_client
from elasticdl.packages.streams.kafka_commit import Commits
from elasticdl.packages.streams.kafka_watch import LONGEST_SECONDS, PartitionWatch
from elasticdl.packages.streams.messages import Format, Lateness, format_of
from elasticdl.packages.streams.topic import Topic, gap_words, parse

if TYPE_CHECKING:
    import confluent_kafka


log = logging.getLogger(__name__)

_CHUNK_RECORDS = 1024
_MOST_CONSUMERS = 8  # each has read a little ahead of where its partition was read last
_POLL_SECONDS = 0.5
_TELL_SECONDS = 5.0
_CHECK_SECONDS = 15.0
_LOOK_SECONDS = 3.0
_ALL_SECONDS = 1.0  # between two looks at what may be new but messages


@dataclass(slots=True)
class _Place:
    """A consumer of one partition.

    at: The position of the next message that comes from it, or a later one if those between are not
        needed; None: not known.
    gone: The number of deleted positions that were asked of it and are not reported yet.
    """

    consumer: confluent_kafka.Consumer
    partition: int = -1
    at: int | None = None
    gone: int = 0

    def take(self, count: int) -> list[confluent_kafka.Message]:
        """Return the messages that are there, or wait a moment for the first one; may be empty."""
        messages: list[confluent_kafka.Message] = self.consumer.consume(count, 0)
        if not messages and (first := self.consumer.poll(_POLL_SECONDS)) is not None:
            messages = [first, *self.consumer.consume(count - 1, 0)]
        return messages


class KafkaReader:
    """Reads the committed messages of a topic, without a consumer group.

    A record is the value of a message, in the topic's format. A message without a value (a
    tombstone) is no record.

    Args:
        topic: The topic.
        kafka: Asks the brokers.
        form: The format of the messages.
        sets_aside: Whether an unreadable message is returned beside the records; else it is an
            error.
        on_late: The treatment of late messages: see `Lateness`.
        skips_gaps: Whether deleted positions are skipped and logged; else they are an error.
    """

    has_holes = True

    def __init__(
        self,
        topic: Topic,
        kafka: Kafka,
        form: Format,
        skips_gaps: bool = False,
        sets_aside: bool = False,
        on_late: str = "train",
    ) -> None:
        self._topic = topic
        self._kafka = kafka
        self._form = form
        self._sets_aside = sets_aside
        self._skips_gaps = skips_gaps
        self._on_late = on_late
        self._places: list[_Place] = []  # that of which was read last is the last
        self._lows: dict[int, int] = {}  # of partitions: what is before is known to be deleted
        self._extents: dict[int, Extent] = {}  # as they were at the last look,
        self._looked_at = 0.0  # and when they were looked at as a whole
        self._is_flowing = False  # whether that look found something new
        self._waits_for = ""  # while a range is read
        self._watch = PartitionWatch(kafka)
        self._commits = Commits(kafka, topic.commit) if topic.commit else None

    @classmethod
    def from_params(cls, place: str, params: Params) -> KafkaReader:
        """Make a reader of a topic; no broker is asked yet.

        Raises:
            ConfigError: The place or the settings say nothing that can be read, or the client is
                not installed.
        """
        topic = parse(place)
        params.override(topic.settings)
        form = format_of(params)
        sets_aside = params.text("bad_messages", "fail") == "aside"
        skips_gaps = params.text("on_gap", "fail") == "skip"
        on_late = params.text("late", "train")
        kafka = Kafka(
            topic,
            params.text("credentials", ""),
            again=params.text_again("credentials"),
            was_let_in=params.flag("waits", False),
        )
        import_client()
        return cls(topic, kafka, form, skips_gaps, sets_aside, on_late)

    @property
    def metadata(self) -> Metadata:
        """The known columns, and whether the order must be kept."""
        return replace(self._form.metadata, keeps_order=self._topic.keeps_order)

    @property
    def is_endless(self) -> bool:
        """Return whether messages that arrive later belong to the data too."""
        return self._topic.is_endless

    @property
    def waits_for(self) -> str:
        """Return the positions for which no message comes, and why; "": none.

        Any thread may ask.
        """
        return self._waits_for or self._kafka.waits_for

    def check(self) -> None:
        """Check that the topic exists.

        Raises:
            DataError: There is no such topic, or no broker answers.
        """
        self._kafka.extents(_CHECK_SECONDS)

    def shards(self) -> list[Shard]:
        """List the positions of each partition now; a broker that is away is waited for.

        If the data has an end, only the positions that belong to the data are listed.
        """
        found = self._as_shards(self._kafka.extents())
        return found if self.is_endless else self._from_start(found)

    def look(self) -> list[Shard]:
        """List what there is of each partition now.

        Raises:
            AwayError: No broker answers.
            DataError: There is no such topic any more, or the brokers refuse.
        """
        before, self._extents = self._extents, self._look(self._extents)
        self._is_flowing = before != self._extents
        return self._as_shards(self._extents)

    def _look(self, before: Mapping[int, Extent]) -> dict[int, Extent]:
        now = time.monotonic()
        # Between two full looks only the ends are asked for, which costs a third.
        if before and now - self._looked_at < _ALL_SECONDS:
            try:
                ends = self._kafka.ends(list(before))
            except AwayError:
                pass  # with all that is asked there is more to be told
            else:
                lows = {at: extent.low for at, extent in before.items()}
                return {at: Extent(low, max(low, ends[at])) for at, low in lows.items()}
        found = self._kafka.extents(_LOOK_SECONDS)
        self._looked_at = now
        return found

    def wait(self) -> None:
        """Return when something new may be there, after a second at the latest."""
        if self._is_flowing:
            return  # more of it has come, most likely
        ends = {at: extent.high for at, extent in self._extents.items()}
        self._watch.wait(ends, LONGEST_SECONDS)

    def trained(self, positions: Mapping[str, int], is_last: bool = False) -> None:
        """Commit positions, if the topic asks for it; an error is logged and not raised."""
        if self._commits is not None:
            of_partition = {self._topic.number_of(name): at for name, at in positions.items()}
            self._commits.commit(of_partition, is_last)

    def beginning(self) -> list[Shard]:
        """List the positions of each partition that a job reads which begins now."""
        return self._from_start(self._as_shards(self._kafka.extents()))

    def _from_start(self, shards: list[Shard]) -> list[Shard]:
        """Return the part of shards behind the start of the topic's data."""
        if self._topic.start == "earliest":
            return shards
        time = self._topic.start_ms
        firsts = {} if time is None else self._kafka.positions_at(time)
        starts = (firsts.get(self._topic.partition_of(shard), shard.end) for shard in shards)
        return [
            Shard(shard.name, min(max(start, shard.start), shard.end), shard.end)
            for shard, start in zip(shards, starts, strict=True)
        ]

    def read(self, shard: Shard, late_before: float = 0.0) -> Iterator[Records]:
        """Yield the records at positions `[shard.start, shard.end)`, with their positions.

        Args:
            shard: The range to read.
            late_before: A message of an earlier event time is late.
        """
        late, has_stamps = Lateness(late_before, self._on_late), not self._form.event_time
        partition, at = self._topic.partition_of(shard), shard.start
        # Positions known to be deleted are not asked for: the broker needs seconds to refuse them.
        if (low := min(self._lows.get(partition, at), shard.end)) > at:
            yield Records(num_gone=low - at)
            if low == shard.end:
                return
            at, shard = low, replace(shard, start=low)
        place = self._find(partition, shard)
        place.gone = 0
        # `quiet` begins anew with each message; `told` also with each warning.
        quiet = told = time.monotonic()
        why = ""
        while at < shard.end:
            before = at
            messages = place.take(min(_CHUNK_RECORDS, shard.end - at))
            place.at = None  # until it is known what they are
            values, offsets, stamps, is_beyond, has_come = [], [], [], False, False
            for message in messages:  # each call costs a tenth of a microsecond
                offset = message.offset()
                if (error := message.error()) is not None:
                    at, why = self._after(message, place, at, shard), error.str()
                    continue
                has_come = True
                if at <= offset < shard.end:
                    at = offset + 1
                    if (value := message.value()) is not None:
                        values.append(value)
                        offsets.append(offset)
                        if has_stamps:
                            stamps.append(message.timestamp()[1])
                elif offset >= shard.end:
                    at, is_beyond = shard.end, True
            now = time.monotonic()
            # An error is no message: a broker may refuse each time, and nothing comes.
            if has_come or at > before:
                quiet, told, why, self._waits_for = now, now, "", ""
            elif now - told >= _TELL_SECONDS:
                told, said = now, self._kafka.trouble or why or "no answer"
                what = f"{shard.name}: nothing came of positions [{at}, {shard.end})"
                self._waits_for = f"{what} ({said})"
                log.warning("%s for %.0f s (%s); asking again", what, now - quiet, said)
                place.consumer = self._consumer(shard, at)  # the old one may be stuck for ever
                self._assign(place, place.partition, at)
                continue
            # If a message beyond the range was read, the next range must be asked for again.
            place.at = None if is_beyond else at
            gone, place.gone = place.gone, 0
            if values:
                found = self._form.records(values, offsets, _times(stamps), late)
                yield self._read(shard, replace(found, num_gone=gone) if gone else found)
            elif gone:
                yield Records(num_gone=gone)

    def _read(self, shard: Shard, records: Records) -> Records:
        unreadable = [each for each in records.aside if not each.is_late]
        if unreadable and not self._sets_aside:
            first = unreadable[0]
            raise DataError(
                f"{shard.name}: the message at {first.position} cannot be read: {first.why}; with "
                "--bad_message_dir=FOLDER the job goes on without such messages",
                is_certain=True,
            )
        return records

    def _as_shards(self, extents: Mapping[int, Extent]) -> list[Shard]:
        return [
            self._topic.shard(partition, extent.low, extent.high)
            for partition, extent in extents.items()
        ]

    def _find(self, partition: int, shard: Shard) -> _Place:
        """Return a consumer whose next message is the first of a shard, or comes a little before.

        A partition's consumer has read ahead, and other workers read those ranges. It passes over
        up to a chunk of messages, or as many as the shard has. That takes less time than a new
        request.
        """
        found = next((place for place in self._places if place.partition == partition), None)
        if found is None and len(self._places) < _MOST_CONSUMERS:
            found = _Place(self._consumer(shard, shard.start))
        elif found is None:
            found = self._places.pop(0)
        else:
            self._places.remove(found)
        self._places.append(found)
        is_ahead = found.partition == partition and found.at is not None
        most = max(shard.num_records, _CHUNK_RECORDS)
        if not (is_ahead and 0 <= shard.start - (found.at or 0) <= most):
            self._assign(found, partition, shard.start)
        return found

    def _consumer(self, shard: Shard, at: int) -> confluent_kafka.Consumer:
        """Return a new consumer; wait while the client refuses its settings."""
        while True:
            try:
                return self._kafka.consumer()
            except AwayError as error:
                self._waits_for = f"{shard.name}: positions [{at}, {shard.end}) wait: {error}"
                log.warning("%s", self._waits_for)
                time.sleep(_TELL_SECONDS)

    def _assign(self, place: _Place, partition: int, offset: int) -> None:
        # `assign` and not `subscribe`: with a group the broker would choose the partitions.
        place.consumer.assign([self._kafka.position(partition, offset)])
        place.partition, place.at = partition, offset

    def _after(self, message: confluent_kafka.Message, place: _Place, at: int, shard: Shard) -> int:
        """Return the position behind an item of the client that is not a record.

        Raises:
            DataError: The positions are not there, and never will be.
        """
        error, codes = message.error(), self._kafka.error_codes()
        if error.code() == codes._PARTITION_EOF:
            return max(at, int(message.offset()))
        if error.code() == codes._AUTO_OFFSET_RESET:
            return self._after_gap(place, at, shard)
        refused = self._kafka.refused(error)
        if refused is not None:
            raise refused
        if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION):
            self._kafka.extents()  # raises if it stays so
        log.warning("%s: %s; still trying", shard.name, error.str())
        self._assign(place, place.partition, at)
        return at

    def _after_gap(self, place: _Place, at: int, shard: Shard) -> int:
        extent: Extent = self._kafka.extent(place.partition)
        # The broker's answer is asked for again before positions are taken as deleted.
        if extent.low <= at <= extent.high:  # it was so for a moment, as a broker started
            self._assign(place, place.partition, at)
            return at
        if at > extent.high:
            raise DataError(
                f"{shard.name}: positions [{at}, {shard.end}) were asked for, and the broker has "
                f"[{extent.low}, {extent.high}): has the topic been deleted and created again?",
                is_certain=True,
            )
        end = min(extent.low, shard.end)
        if not self._skips_gaps:
            raise DataError(gap_words(shard.name, at, end), is_certain=True)
        log.warning("%s; skipped", gap_words(shard.name, at, end))
        self._lows[place.partition] = extent.low  # to be refused takes seconds
        place.gone += end - at
        if end < shard.end:
            self._assign(place, place.partition, end)
        return int(end)


def _times(stamps: list[int]) -> list[float]:
    """Return times of messages in seconds since 1970, from milliseconds; -1 and 0: no time."""
    return [max(0, stamp) / 1000 for stamp in stamps]
