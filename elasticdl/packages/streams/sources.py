"""The sources of a job's records that go on arriving, or are messages.

`TopicSource` serves a job whose messages were cut into tasks when it began. `StreamSource` serves a
job whose tasks are cut as records arrive, and `TimedStreamSource` a stream whose messages have
times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from elasticdl.job import Lease, Shard, Task, TaskKind, TaskReport
from elasticdl.job.status import JobStatus, PartitionStatus
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.ledger import Settled
from elasticdl.master.tasks import TaskTable
from elasticdl.observe import kinds
from elasticdl.packages.streams import news
from elasticdl.packages.streams.intake import Intake, partition_order
from elasticdl.packages.streams.settings import StreamsSection
from elasticdl.packages.streams.stream_table import StreamTable
from elasticdl.packages.streams.topic import is_topic, parse
from elasticdl.packages.streams.watermark import EventTime
from elasticdl.packages.streams.windows import Windows
from elasticdl.state.base import Snapshot


class TopicSource(RecordSource):
    """A topic that was cut into tasks when the job began."""

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Say which messages of a task were no records."""
        if settled is Settled.DONE and task.kind is TaskKind.TRAINING:
            ledger = self._job.ledger
            totals = ledger.missing.num_unreadable, ledger.missing.num_late, self.num_gone
            own = self._job.config.of(StreamsSection)
            for note in news.of_task(task.shard, report, *totals, own):
                self._job.act(note)

    @property
    def num_gone(self) -> int:
        """How many positions the broker deleted before they were read."""
        return sum(self._job.ledger.missing.gone.values())

    def show(self, status: JobStatus) -> JobStatus:
        """Show the partitions of a topic that was cut into tasks before, if some are gone."""
        table, ledger = self._job.tasks.training, self._job.ledger
        if not ledger.missing.gone or not isinstance(table, TaskTable):
            return status
        left = table.records_of_shards(~ledger.done_of_epoch(ledger.epochs.first_open))
        ends, lags = Counter[str](), Counter[str]()
        for shard, lag in zip(table.shards, left, strict=True):  # a partition has many
            ends[shard.name] = max(ends[shard.name], shard.end)
            lags[shard.name] += lag
        partitions = tuple(
            PartitionStatus(name, end, end, lags[name], ledger.missing.gone.get(name, 0))
            for name, end in sorted(ends.items(), key=lambda item: partition_order(item[0]))
        )
        return replace(status, partitions=partitions)


class StreamSource(TopicSource):
    """A source whose training tasks are cut as its records arrive."""

    def __init__(self, job: JobParts, intake: Intake) -> None:
        super().__init__(job)
        self._intake = intake

    # --- events ----------------------------------------------------------------------------------

    def arrived(self, found: Sequence[Shard], now: float) -> None:
        """Cut what has arrived into tasks, as far as workers need them."""
        history = self._job.history
        if history.has_ended:
            return
        problem = self._take_in(found, now)
        if problem:
            self._job.fail_after_checkpoint(problem, now)
        elif not (history.failing or self._job.ledger.is_stopped):
            self._cut(now)
        self._job.advance(now)

    def _take_in(self, found: Sequence[Shard], now: float) -> str:
        """Take in how far each partition goes; return why the job has to end."""
        if self._intake.away:
            self._intake.answers_again(now)
            self._job.note(kinds.StreamNews(), "the source of the stream answers")
        before = dict(self._intake.skipped)
        problem = self._intake.arrived(found, now)
        for name, skipped in self._intake.skipped.items():
            for note in news.of_gap(name, self.num_gone, skipped - before.get(name, 0)):
                self._job.act(note)
        return problem

    def came_to_end(self) -> None:
        """Have the stream end where it is."""
        if not self._job.history.has_ended:
            self._intake.drain()

    def went_away(self, words: str) -> None:
        """Say so, and remember it for displays."""
        if self._job.history.has_ended:
            return
        if not self._intake.away:
            self._job.note(kinds.StreamNews(), f"{words}; still trying", is_warning=True)
        self._intake.away = words

    def drain(self, now: float) -> None:
        """Finish the job, once what has arrived by now is trained."""
        self._intake.drain()
        self._job.advance(now)

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Learn from a task that is done, and cut the next one where the order is kept."""
        super().ended(task, report, settled, now)
        if settled is Settled.DONE and task.kind is TaskKind.TRAINING:
            self._intake.trained(task.shard.name, report.time)
            num_positions = task.shard.num_records
            self._intake.found(num_positions, num_positions - report.num_missing)
        if self._intake.keeps_order and not self._job.history.failing:
            self._cut(now)

    def advance(self, now: float) -> None:
        """Begin no task any more, once the stream is over and all of it is begun."""
        if self._intake.is_over and not self._job.ledger.has_fresh:
            self._job.ledger.stop_training()

    def _cut(self, now: float) -> None:
        ledger = self._job.ledger
        self._intake.cut(ledger.num_todo, now, ledger.open_training())

    # --- questions -------------------------------------------------------------------------------

    def may_lease(self, task_id: int) -> bool:
        """Whether the order of a partition is kept, where it is to be."""
        leased = (task for task, _ in self._job.ledger.leases())
        return self._intake.is_in_order(task_id, leased)

    @property
    def num_gone(self) -> int:
        """How many positions the broker deleted before they were read."""
        return sum(self._intake.skipped.values()) + super().num_gone

    def trained_up_to(self) -> dict[str, int]:
        """Return the position of each partition before which nothing is left to do."""
        return self._intake.trained_up_to(self._job.ledger.open_training())

    def kept_from(self) -> dict[str, int]:
        """Return the position of each partition before which all is forgotten."""
        table = self._job.tasks.training
        assert isinstance(table, StreamTable)
        return table.kept_from()

    # --- displays --------------------------------------------------------------------------------

    def show(self, status: JobStatus) -> JobStatus:
        """Show where each partition is, and count what was not cut into tasks yet."""
        ledger = self._job.ledger
        found = self._intake.partitions(ledger.open_training())
        total = status.records_total + sum(each.end - each.position for each in found)
        done = ledger.training_records_done + self._job.meter.records_in_flight
        return replace(
            status,
            records_total=total,
            records_done=min(total, done),
            partitions=tuple(
                replace(each, skipped=each.skipped + ledger.missing.gone.get(each.name, 0))
                for each in found
            ),
        )

    def troubles(self) -> list[str]:
        """Say what is wrong with the source, or who waits for it."""
        found = [words for words in (self._intake.away, self._intake.trouble) if words]
        return found or super().troubles()

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {"intake": self._intake.snapshot()}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._intake.restore(snapshot["intake"])


class TimedStreamSource(StreamSource):
    """A stream whose messages have times: it has a watermark, windows, and late messages."""

    def __init__(self, job: JobParts, intake: Intake, times: EventTime) -> None:
        super().__init__(job, intake)
        self.times = times

    def _take_in(self, found: Sequence[Shard], now: float) -> str:
        if self._intake.away:
            self.times.answers_again(now)
        problem = super()._take_in(found, now)
        self.times.look(self._intake.waiting, now)
        return problem

    def ended(self, task: Task, report: TaskReport, settled: Settled, now: float) -> None:
        """Have the watermark go on with a task that is done."""
        super().ended(task, report, settled, now)
        if task.kind is not TaskKind.TRAINING:
            return
        name = task.shard.name
        if settled is Settled.DONE:
            self.times.done(name, report)
        elif settled is Settled.QUARANTINED:
            self.times.set_aside(name, task.id)
        if self.times.is_held_by(name):
            self.times.look(self._intake.waiting, now)

    def passing(self, is_training_over: bool) -> None:
        """Say how the windows were scored that are over now."""
        for window in self.times.tell(is_training_over):
            self._job.act(news.of_window(window))

    def completed(self, lease: Lease) -> Lease:
        """Say which messages of a task are late."""
        if lease.task.kind is not TaskKind.TRAINING:
            return lease
        late_before = self.times.begun(lease.task.id)
        return replace(lease, late_before=late_before) if late_before else lease

    @property
    def event_seconds(self) -> float:
        """The watermark."""
        return self.times.watermark

    @property
    def windows(self) -> Windows:
        """The windows of event time."""
        return self.times.windows

    def show(self, status: JobStatus) -> JobStatus:
        """Show the watermark and the windows, too."""
        return replace(
            super().show(status),
            watermark=self.times.watermark,
            windows=self.times.windows.statuses(),
        )

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {**super().snapshot(), "event_time": self.times.snapshot()}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot; earlier versions wrote none of event time."""
        super().restore(snapshot)
        if found := snapshot.get("event_time"):
            self.times.restore(found)


def features_of(job: JobParts) -> list[JobFeature]:
    """Return the source of a job by its settings; none if the records are files."""
    table, data, size = job.tasks.training, job.config.data, job.config.records_per_task
    if not isinstance(table, StreamTable):
        return [TopicSource(job)] if is_topic(data.training_data) else []
    if not is_topic(data.training_data):
        return [StreamSource(job, Intake(job.journal, table, size))]
    topic, own = parse(data.training_data), job.config.of(StreamsSection)
    disorder, lateness = topic.disorder_seconds, own.lateness_seconds
    times = EventTime(job.journal, table, own.window_seconds, disorder, lateness)
    intake = Intake(
        job.journal,
        table,
        size,
        skips_gaps=own.on_gap == "skip",
        ends_at_once=not topic.is_endless,
        guessed_records=topic.guessed_records(data.data_reader_params),
        when_cut=times.cut,
    )
    return [TimedStreamSource(job, intake, times)]
