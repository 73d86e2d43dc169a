"""What is asked of Kafka's brokers, through confluent-kafka (librdkafka).

No consumer group: which positions are read is the job's business, and nobody else's. A broker that
is away is waited for; what no waiting can mend is a `DataError`.
"""

from __future__ import annotations

import difflib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from elasticdl.data.topic import SCHEME, Topic
from elasticdl.distribution import install
from elasticdl.errors import AwayError, ConfigError, DataError
from elasticdl.settings.reader_params import FLAG, HIDDEN

if TYPE_CHECKING:
    import confluent_kafka


log = logging.getLogger(__name__)
_T = TypeVar("_T")

_FIRST_ASK_SECONDS = 1.0  # for one answer; then twice as long for each that did not come
_LONGEST_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # between two tries
_TELL_SECONDS = 10.0  # between two words about a broker that is away
_SURE_SECONDS = 5.0  # for a broker that has just started to know its topics
_NEXT, _FIRST = -1, -2  # in place of a time: the position of the next message, of the first one
_SECRET = re.compile(r"password|secret|jaas|\.key\.|\.pem$|token", re.IGNORECASE)
_HINT = "give credentials=file:/PATH, a file of settings of librdkafka (docs/streams.md)"
_OURS = {
    "group.id": "elasticdl",  # the client wants one; nobody joins it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # what was deleted is never skipped in silence
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "log_level": 0,  # what is wrong is told by us
    "reconnect.backoff.max.ms": 1000,  # a broker that is back is not left waiting for 10 s
    # Tasks are small ranges here and there. A request that waits at the end of a partition, or one
    # that is put off because much is there, holds up the next range; and little is read in vain.
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 1000,
    "max.partition.fetch.bytes": 256 << 10,
}


@dataclass(frozen=True, slots=True)
class Extent:
    """Positions `[low, high)` of a partition that can be read now."""

    low: int
    high: int


class Kafka:
    """One topic, as its brokers tell of it. Not for several threads at once.

    Args:
        topic: Which one.
        credentials: Settings of librdkafka, a `name=value` a line: TLS, SASL and the like.
        again: Reads them anew, for each new client; None: they stay.
        was_let_in: The job was let in before. A broker that refuses then, as it starts, or as
            credentials are changed, is waited for.
    """

    def __init__(
        self,
        topic: Topic,
        credentials: str = "",
        again: Callable[[], str] | None = None,
        was_let_in: bool = False,
    ) -> None:
        self._topic = topic
        self._given = parse_credentials(credentials)
        self._again = again
        self._complaint: confluent_kafka.KafkaError | None = None
        self._was_let_in = was_let_in
        self._ask_seconds = _FIRST_ASK_SECONDS
        self.waits_for = ""
        """Why nobody has answered for a while; "": somebody has."""

    def extents(self, patience_seconds: float | None = None) -> dict[int, Extent]:
        """Return what there is of each partition; of transactions, what is committed.

        Args:
            patience_seconds: How long a broker that is away is waited for; None: as long as it
                takes.

        Raises:
            AwayError: It was waited long enough.
            DataError: There is no such topic, or the brokers refuse.
        """
        return self._answered(lambda: self._extents(self._partitions()), patience_seconds)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return how far each partition goes; it costs a third of `extents`.

        Raises:
            AwayError: There is no answer now.
            DataError: The brokers refuse.
        """
        return self._answered(lambda: self._offsets(partitions, _NEXT), 0.0)

    def positions_at(self, milliseconds: int) -> dict[int, int]:
        """Return of each partition the first position whose message is of a time, or later.

        One that has none is left out. The times are those of the messages, in ms since 1970.
        """

        def ask() -> dict[int, int]:
            found = self._offsets(self._partitions(), milliseconds)
            return {partition: at for partition, at in found.items() if at >= 0}

        return self._answered(ask, None)

    def extent(self, partition: int) -> Extent:
        """Return what there is of one partition; a broker that is away is waited for."""
        return self._answered(lambda: self._extents([partition]), None)[partition]

    def consumer(self, settings: Mapping[str, object] | None = None) -> confluent_kafka.Consumer:
        """Return a new consumer, which nobody has told what to read.

        Args:
            settings: What is other for it than for a reader.

        Raises:
            AwayError: The client does not take the credentials, as they are now.
            DataError: It does not take them, and the job was never let in.
        """
        self._read_credentials()
        try:
            return self._client.Consumer(self._settings({**_OURS, **(settings or {})}))
        except self._client.KafkaException as raised:
            if (refused := self.refused(raised.args[0])) is not None:
                raise refused from raised
            raise AwayError(f"{self._where}: {self._said(raised.args[0])}") from raised

    def position(self, partition: int, offset: int) -> confluent_kafka.TopicPartition:
        """Return a place in the topic, as the client names it."""
        return self._client.TopicPartition(self._topic.name, partition, offset)

    def error_codes(self) -> type[confluent_kafka.KafkaError]:
        """Return the client's names of errors."""
        codes: type[confluent_kafka.KafkaError] = self._client.KafkaError
        return codes

    @property
    def trouble(self) -> str:
        """What the client complained of last."""
        return "" if self._complaint is None else self._said(self._complaint)

    def refused(self, error: confluent_kafka.KafkaError) -> DataError | None:
        """Return what is to be raised for an error; None: waiting may mend it.

        A broker that has let somebody in may refuse for a while, as it starts, or as credentials
        are changed.
        """
        if self._was_let_in:
            return None
        code, codes, said = error.code(), self._client.KafkaError, self._said(error)
        if code == codes._INVALID_ARG:
            return DataError(f"{self._where}: the client does not take its settings: {said}")
        if error.fatal():
            return DataError(f"{self._where}: {said}")
        if code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL):
            return DataError(
                f"{self._where}: the broker and these credentials do not agree ({said}); {_HINT}"
            )
        if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
            return DataError(f"{self._where}: these credentials may not read it ({said})")
        return None

    # --- asking ----------------------------------------------------------------------------------

    @cached_property
    def _client(self) -> ModuleType:
        return import_client()

    def _read_credentials(self) -> None:
        """Take over what the credentials are now: they may have been changed since."""
        if self._again is None:
            return
        try:
            self._given = parse_credentials(self._again())
        except ConfigError as error:
            if not self._was_let_in:
                raise
            log.warning("%s; those that were read before are tried", error)

    def _settings(self, ours: Mapping[str, object]) -> dict[str, object]:
        where = {"bootstrap.servers": self._topic.servers}
        return {**self._given, **where, **ours, "error_cb": self._complained}

    @property
    def _where(self) -> str:
        return f"{SCHEME}://{self._topic.servers}/{self._topic.name}"

    def _complained(self, error: confluent_kafka.KafkaError) -> None:
        # That all brokers are down says less than why they are.
        if self._complaint is None or error.code() != self._client.KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    def _said(self, error: confluent_kafka.KafkaError) -> str:
        """Return the words of an error, without what the credentials keep to themselves."""
        words = str(error.str())
        for name, value in self._given.items():
            if value and _SECRET.search(name):
                words = words.replace(value, HIDDEN)
        return words

    @cached_property
    def _asker(self) -> confluent_kafka.Consumer:
        """A consumer of nothing: it is the kind of client that never makes a topic by asking."""
        return self.consumer()

    def _partitions(self) -> list[int]:
        deadline = time.monotonic() + _SURE_SECONDS
        while True:
            found = self._asker.list_topics(self._topic.name, timeout=self._ask_seconds).topics
            topic = found.get(self._topic.name)
            if topic is not None and topic.error is None and topic.partitions:
                return sorted(topic.partitions)
            if topic is not None and topic.error is not None:
                refused = self.refused(topic.error)
                if refused is not None:
                    raise refused
            if time.monotonic() > deadline:
                error = None if topic is None else topic.error
                if error is None or error.code() == self._client.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise DataError(self._no_topic())
                raise self._client.KafkaException(error)
            time.sleep(_PAUSE_SECONDS)

    def _no_topic(self) -> str:
        names = self._asker.list_topics(timeout=self._ask_seconds).topics
        near = difflib.get_close_matches(self._topic.name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{SCHEME}://{self._topic.servers}: there is no topic {self._topic.name}{hint}"

    def _extents(self, partitions: Sequence[int]) -> dict[int, Extent]:
        lows, highs = self._offsets(partitions, _FIRST), self._offsets(partitions, _NEXT)
        return {at: Extent(lows[at], max(lows[at], highs[at])) for at in partitions}

    def _offsets(self, partitions: Sequence[int], time: int) -> dict[int, int]:
        """Return the first position of each partition that is of a time; of what is committed."""
        asked = [self.position(at, time) for at in partitions]
        found = self._asker.offsets_for_times(asked, timeout=self._ask_seconds)
        for place in found:
            if place.error is not None:
                raise self._client.KafkaException(place.error)
        return {place.partition: place.offset for place in found}

    def _answered(self, ask: Callable[[], _T], patience_seconds: float | None) -> _T:
        """Ask until there is an answer.

        Raises:
            AwayError: It was waited long enough.
            DataError: No waiting can mend it.
        """
        began = told = time.monotonic()
        while True:
            try:
                found = ask()
                self._was_let_in, self._complaint, self.waits_for = True, None, ""
                self._ask_seconds = _FIRST_ASK_SECONDS
                return found
            except AwayError as raised:  # there is no client that could ask
                words = str(raised)
            except self._client.KafkaException as raised:
                words = self._why(raised.args[0])
            # A client may hold on for ever to what it knew of a broker that has died (librdkafka
            # 2.16: FENCED_LEADER_EPOCH to each question for a position); a new one asks, and
            # leaves more time: an answer that is late may be on a long way, or lost.
            self.__dict__.pop("_asker", None)
            self._ask_seconds = min(2 * self._ask_seconds, _LONGEST_ASK_SECONDS)
            now = time.monotonic()
            if patience_seconds is not None and now - began >= patience_seconds:
                hint = "" if self._given or self._was_let_in else f"; if it wants TLS, {_HINT}"
                raise AwayError(
                    f"{self._where}: no broker answers for {now - began:.0f} s: {words}{hint}"
                )
            if now - told >= _TELL_SECONDS:
                told, self.waits_for = now, f"{self._where}: no broker answers ({words})"
                log.warning("%s for %.0f s; still waiting", self.waits_for, now - began)
            time.sleep(_PAUSE_SECONDS)

    def _why(self, error: confluent_kafka.KafkaError) -> str:
        """Return the words of an error that may be mended.

        Raises:
            DataError: No waiting can mend it.
        """
        self._listen()
        for each in (error, self._complaint):
            if each is not None and (refused := self.refused(each)) is not None:
                raise refused
        return "; ".join(filter(None, [self._said(error), self.trouble]))

    def _listen(self) -> None:
        """Have the client say what it complains of: it does so when it is asked for news."""
        if (client := self.__dict__.get("_asker")) is not None:
            client.poll(0)


def import_client() -> ModuleType:
    """Return the module of the client.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError(
            f"{SCHEME}://: needs a package that is not installed ({error}): {install('kafka')}"
        ) from error
    module: ModuleType = confluent_kafka
    return module


def parse_credentials(text: str) -> dict[str, str]:
    """Return settings of librdkafka, a `name=value` a line; `#` begins a comment.

    Raises:
        ConfigError: A line is none, or sets what the job decides. No message has a value in it.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise ConfigError(f"{FLAG}: credentials, line {number}: expected name=value")
        if name in _OURS or name == "bootstrap.servers":
            raise ConfigError(f"{FLAG}: credentials, line {number}: {name} is set by the job")
        found[name] = value
    return found
