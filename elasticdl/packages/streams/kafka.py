"""Asks Kafka's brokers, through confluent-kafka (librdkafka).

The job does not join a consumer group: it alone decides which positions are read. A broker that is
away is waited for. An error that waiting cannot repair is a `DataError`.
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

from elasticdl.distribution import install
from elasticdl.errors import AwayError, ConfigError, DataError
from elasticdl.packages.streams.topic import SCHEME, Topic
from elasticdl.settings.reader_params import FLAG, HIDDEN

if TYPE_CHECKING:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient


log = logging.getLogger(__name__)
_T = TypeVar("_T")

_FIRST_ASK_SECONDS = 1.0  # for one answer; then twice as long for each that did not come
_LONGEST_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # between two tries
_TELL_SECONDS = 10.0  # between two words about a broker that is away
_SURE_SECONDS = 5.0  # for a broker that has just started to know its topics
_NEXT, _FIRST = -1, -2  # in place of a time: the position of the next message, of the first one
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a topic whose broker knows no ids
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
    # Tasks are small ranges in many places. A request that waits at the end of a partition holds up
    # the next range. So does a request that is delayed because much is buffered. The other limits
    # keep small what is read and not used.
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
    """One topic, through its brokers. Not for several threads at once.

    Args:
        topic: The topic.
        credentials: Settings of librdkafka, a `name=value` in each line: TLS, SASL and the like.
        again: Reads the credentials again, for each new client; None: they stay.
        was_let_in: Whether a broker has accepted the job before. If a broker refuses then, as it
            starts or while credentials are changed, it is waited for.
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
        self._id = ""  # of the topic: one that is made anew has another
        self._tells_id = True  # whether the broker says which id it has
        self.waits_for = ""
        """The reason why no broker has answered for a while; "": one has."""

    def extents(self, patience_seconds: float | None = None) -> dict[int, Extent]:
        """Return the positions of each partition; of transactions, only committed ones.

        Args:
            patience_seconds: How long a broker that is away is waited for; None: without a limit.

        Raises:
            AwayError: No broker answered in this time.
            DataError: There is no such topic, it was made anew, or the brokers refuse.
        """
        return self._answered(lambda: self._extents(self._partitions()), patience_seconds)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the end of each partition; this costs a third of `extents`.

        Raises:
            AwayError: No broker answers now.
            DataError: The brokers refuse.
        """
        return self._answered(lambda: self._offsets(partitions, _NEXT), 0.0)

    def positions_at(self, milliseconds: int) -> dict[int, int]:
        """Return for each partition the first position whose message has this time or a later one.

        A partition without such a message is left out. The times are those of the messages, in ms
        since 1970.
        """

        def ask() -> dict[int, int]:
            found = self._offsets(self._partitions(), milliseconds)
            return {partition: at for partition, at in found.items() if at >= 0}

        return self._answered(ask, None)

    def extent(self, partition: int) -> Extent:
        """Return the positions of one partition; a broker that is away is waited for."""
        return self._answered(lambda: self._extents([partition]), None)[partition]

    def consumer(self, settings: Mapping[str, object] | None = None) -> confluent_kafka.Consumer:
        """Return a new consumer that has nothing to read yet.

        Args:
            settings: Settings that differ from those of a reader.

        Raises:
            AwayError: The client refuses the credentials in their present form. DataError: The
                client refuses them, and no broker has ever accepted the job.
        """
        self._read_credentials()
        try:
            return self._client.Consumer(self._settings({**_OURS, **(settings or {})}))
        except self._client.KafkaException as raised:
            if (refused := self.refused(raised.args[0])) is not None:
                raise refused from raised
            raise AwayError(f"{self._where}: {self._said(raised.args[0])}") from raised

    def position(self, partition: int, offset: int) -> confluent_kafka.TopicPartition:
        """Return a position of the topic in the form of the client."""
        return self._client.TopicPartition(self._topic.name, partition, offset)

    def error_codes(self) -> type[confluent_kafka.KafkaError]:
        """Return the client's error codes."""
        codes: type[confluent_kafka.KafkaError] = self._client.KafkaError
        return codes

    @property
    def trouble(self) -> str:
        """The client's last complaint."""
        return "" if self._complaint is None else self._said(self._complaint)

    def refused(self, error: confluent_kafka.KafkaError) -> DataError | None:
        """Return the error to raise; None if waiting may repair it.

        A broker that has accepted the job may refuse for a while, as it starts, or while
        credentials are changed.
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
        """Read the credentials again, if they can change."""
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
        # "All brokers are down" says less than the reason why they are.
        if self._complaint is None or error.code() != self._client.KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    def _said(self, error: confluent_kafka.KafkaError) -> str:
        """Return the words of an error, without secret values of the credentials."""
        words = str(error.str())
        for name, value in self._given.items():
            if value and _SECRET.search(name):
                words = words.replace(value, HIDDEN)
        return words

    @cached_property
    def _asker(self) -> confluent_kafka.Consumer:
        """A consumer that reads nothing. Unlike a producer, it never creates a topic by asking."""
        return self.consumer()

    def _partitions(self) -> list[int]:
        deadline = time.monotonic() + _SURE_SECONDS
        while True:
            found = self._asker.list_topics(self._topic.name, timeout=self._ask_seconds).topics
            topic = found.get(self._topic.name)
            if topic is not None and topic.error is None and topic.partitions:
                self._require_same_topic()
                return sorted(topic.partitions)
            if topic is not None and topic.error is not None:
                refused = self.refused(topic.error)
                if refused is not None:
                    raise refused
            # A broker that has just started may not know its topics yet, so the first answer is not
            # believed.
            if time.monotonic() > deadline:
                error = None if topic is None else topic.error
                if error is None or error.code() == self._client.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise DataError(self._no_topic())
                raise self._client.KafkaException(error)
            time.sleep(_PAUSE_SECONDS)

    def _require_same_topic(self) -> None:
        """Find out that a topic was made anew: its positions would be taken for those before.

        Raises:
            DataError: The topic has another id than before.
        """
        found = self._ask_id() if self._tells_id else ""
        if found in ("", _NO_ID):  # old brokers know no ids, and others may not tell them
            self._tells_id = bool(self._id)
            return
        if self._id not in ("", found):
            raise DataError(
                f"{self._where}: the topic was deleted and created again; a job with another "
                "--job_dir trains its new messages"
            )
        self._id = found

    def _ask_id(self) -> str:
        """Return the id of the topic; "": no answer."""
        from confluent_kafka import TopicCollection

        asked, seconds = TopicCollection([self._topic.name]), self._ask_seconds
        try:
            answer = self._describer.describe_topics(asked, request_timeout=seconds)
            return str(answer[self._topic.name].result().topic_id)
        except self._client.KafkaException:
            return ""

    @cached_property
    def _describer(self) -> AdminClient:
        """A client for what a consumer cannot ask."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._settings({"log_level": 0}))

    def _no_topic(self) -> str:
        names = self._asker.list_topics(timeout=self._ask_seconds).topics
        near = difflib.get_close_matches(self._topic.name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{SCHEME}://{self._topic.servers}: there is no topic {self._topic.name}{hint}"

    def _extents(self, partitions: Sequence[int]) -> dict[int, Extent]:
        lows, highs = self._offsets(partitions, _FIRST), self._offsets(partitions, _NEXT)
        return {at: Extent(lows[at], max(lows[at], highs[at])) for at in partitions}

    def _offsets(self, partitions: Sequence[int], time: int) -> dict[int, int]:
        """Return the first committed position of each partition with this time or a later one."""
        asked = [self.position(at, time) for at in partitions]
        found = self._asker.offsets_for_times(asked, timeout=self._ask_seconds)
        for place in found:
            if place.error is not None:
                raise self._client.KafkaException(place.error)
        return {place.partition: place.offset for place in found}

    def _answered(self, ask: Callable[[], _T], patience_seconds: float | None) -> _T:
        """Ask until there is an answer.

        Raises:
            AwayError: The patience is over. DataError: Waiting cannot repair the error.
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
            # A client may keep its old knowledge of a broker that has died (librdkafka 2.16:
            # FENCED_LEADER_EPOCH to each question for a position). So a new client asks. It also
            # waits longer: the answer may be slow, and not lost.
            self.__dict__.pop("_asker", None)
            self.__dict__.pop("_describer", None)
            self._tells_id = True
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
        """Return the words of an error that waiting may repair.

        Raises:
            DataError: Waiting cannot repair the error.
        """
        self._listen()
        for each in (error, self._complaint):
            if each is not None and (refused := self.refused(each)) is not None:
                raise refused
        return "; ".join(filter(None, [self._said(error), self.trouble]))

    def _listen(self) -> None:
        """Make the client report its complaints: it does so only when it is polled."""
        if (client := self.__dict__.get("_asker")) is not None:
            client.poll(0)


def import_client() -> ModuleType:
    """Return the client's module.

    Raises:
        ConfigError: The client is not installed.
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
    """Return settings of librdkafka, a `name=value` in each line; `#` begins a comment.

    Raises:
        ConfigError: A line is not a setting, or sets what the job decides. No message shows a
            value.
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
