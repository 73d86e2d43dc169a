"""The speed and the loss of the job, from reports of workers; for displays, not for decisions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import zip_longest

from elasticdl.job import STALENESS_BUCKETS, Progress, TaskReport
from elasticdl.master.journal import Journal
from elasticdl.state.base import Snapshot

_WINDOW_SECONDS = 10.0
_STILL_SECONDS = 60.0  # without a record trained: longer than a minibatch usually takes
_SAMPLE_SECONDS = 0.1
_LOSS_RECORDS = 20_000  # or those of an epoch, if it has less


@dataclass(slots=True)
class _Totals:
    """The totals of one worker process: the sum of its reports, and the most that it has told."""

    reported_records: int = 0
    reported_loss: float = 0.0
    seen_records: int = 0
    seen_loss: float = 0.0


@dataclass(slots=True)
class _EpochLoss:
    records: int = 0
    loss: float = 0.0


class Meter:
    """Throughput, loss, version and staleness.

    A worker's heartbeats run ahead of its reports: they tell of records of leases that have not
    ended. The source that has come further counts for a worker.
    """

    def __init__(
        self, journal: Journal, tasks_per_epoch: int = 0, records_per_epoch: int = 0
    ) -> None:
        self._journal = journal
        self._tasks_per_epoch = max(tasks_per_epoch, 1)
        self._most_loss_records = min(_LOSS_RECORDS, records_per_epoch or _LOSS_RECORDS)
        self._epochs: dict[int, _EpochLoss] = {}
        self._workers: dict[int, _Totals] = {}
        self._rate: deque[tuple[float, int]] = deque()  # (time, records trained up to it)
        self._loss: deque[tuple[int, float]] = deque()  # (records, their summed loss)
        self._loss_records = 0
        self._seen_records = 0  # over all workers
        self.model_version = 0
        self.learning_rate: float | None = None  # rate of the last step that was reported
        self.num_minibatches = 0
        self.staleness_sum = 0
        self.max_staleness = 0
        self.staleness_histogram = [0] * STALENESS_BUCKETS
        self.num_recomputed = 0
        # Training task that is not done -> minibatches that leases of it have computed, and given
        # back. Not journalled: another master counts a little less.
        self._given_back: dict[int, int] = {}
        # Training task -> minibatches left out, and the examples in each (-1: not known).
        self.skipped: dict[int, dict[int, int]] = {}
        journal.handle("trained", self._apply_trained)

    # --- events ----------------------------------------------------------------------------------

    def reported(
        self, worker_id: int, report: TaskReport, now: float, was_done: bool, is_done: bool
    ) -> None:
        """Take in the end of a lease of a training task.

        Args:
            worker_id: The worker that had the lease.
            report: The worker's report.
            now: The time.
            was_done: The task was done before this lease, and updates of it were lost.
            is_done: It is done now.
        """
        totals = self._totals(worker_id)
        records = totals.reported_records + report.num_records
        self._see(totals, records, totals.reported_loss + report.loss_sum, now)
        self._journal.record(
            "trained",
            worker_id,
            report.task_id,
            # In one process they may be NumPy's, which JSON does not know.
            int(report.num_records),
            float(report.loss_sum),
            int(report.model_version),
            int(report.num_minibatches),
            int(report.staleness_sum),
            int(report.staleness_max),
            [
                [int(index), int(examples)]
                for index, examples in zip_longest(
                    report.skipped, report.skipped_examples, fillvalue=-1
                )
            ],
            [int(count) for count in report.staleness_histogram],
            int(report.num_recomputed) + self._again(report, was_done, is_done),
        )

    def _again(self, report: TaskReport, was_done: bool, is_done: bool) -> int:
        """Return how many minibatches under this lease had been computed before."""
        number = int(report.num_minibatches) + len(report.skipped)
        if was_done:
            return number
        before = self._given_back.pop(report.task_id, 0)
        if not is_done:
            self._given_back[report.task_id] = before + number
            return 0
        return max(0, before + number - int(report.end_index)) if report.end_index >= 0 else 0

    def heard(self, worker_id: int, progress: Progress, now: float) -> None:
        """Take in what a worker says of itself."""
        self.model_version = max(self.model_version, progress.model_version)
        self.learning_rate = progress.learning_rate or self.learning_rate
        self._see(self._totals(worker_id), progress.num_records, progress.loss_sum, now)

    def lost(self, worker_id: int) -> None:
        """Forget what a lost worker did beyond its reports: another one goes on with it."""
        totals = self._workers.get(worker_id)
        if totals is not None:
            totals.seen_records, totals.seen_loss = totals.reported_records, totals.reported_loss

    def begin(self, now: float) -> None:
        """Start to measure throughput."""
        self._rate.append((now, self._seen_records))

    def _see(self, totals: _Totals, records: int, loss: float, now: float) -> None:
        # A heartbeat may arrive after the report that it ran ahead of, and tells less then.
        gained = records - totals.seen_records
        if gained <= 0:
            return
        self._loss.append((gained, loss - totals.seen_loss))
        self._loss_records += gained
        enough = self._most_loss_records
        while len(self._loss) > 1 and self._loss_records - self._loss[0][0] >= enough:
            self._loss_records -= self._loss.popleft()[0]
        self._seen_records += gained
        # Thousands of workers report in a second; samples that are close together become one.
        if self._rate and now - self._rate[-1][0] < _SAMPLE_SECONDS:
            now = self._rate.pop()[0]
        self._rate.append((now, self._seen_records))
        totals.seen_records, totals.seen_loss = records, loss

    def _totals(self, worker_id: int) -> _Totals:
        return self._workers.setdefault(worker_id, _Totals())

    # --- questions -------------------------------------------------------------------------------

    @property
    def records_in_flight(self) -> int:
        """Records trained under leases that have not ended."""
        return sum(t.seen_records - t.reported_records for t in self._workers.values())

    @property
    def mean_staleness(self) -> float:
        """Mean over all updates."""
        return self.staleness_sum / self.num_minibatches if self.num_minibatches else 0.0

    @property
    def loss(self) -> float | None:
        """Mean over recent records."""
        if not self._loss_records:
            return None
        return sum(loss for _, loss in self._loss) / self._loss_records

    def epoch_loss(self, epoch: int) -> float | None:
        """Return the mean over the records of an epoch, as far as they were reported."""
        sums = self._epochs.get(epoch)
        return sums.loss / sums.records if sums is not None and sums.records else None

    def records_per_second(self, now: float) -> float:
        """Return the throughput of the last seconds; 0.0 if the job stands still."""
        while len(self._rate) > 2 and self._rate[1][0] <= now - _WINDOW_SECONDS:
            self._rate.popleft()
        if not self._rate:
            return 0.0
        (since, before), (last, after) = self._rate[0], self._rate[-1]
        # Records of a slow job come rarely: the time between the last two reports counts.
        if now - last > max(_STILL_SECONDS, 2 * (last - since)):
            return 0.0
        return (after - before) / (now - since) if now > since else 0.0

    # --- facts -----------------------------------------------------------------------------------

    def _apply_trained(
        self,
        worker_id: int,
        task_id: int,
        num_records: int,
        loss_sum: float,
        model_version: int,
        num_minibatches: int,
        staleness_sum: int,
        staleness_max: int,
        skipped: list[list[int]],
        staleness_histogram: list[int],
        num_recomputed: int,
    ) -> None:
        totals = self._totals(worker_id)
        totals.reported_records += num_records
        totals.reported_loss += loss_sum
        epoch = self._epochs.setdefault(task_id // self._tasks_per_epoch, _EpochLoss())
        epoch.records += num_records
        epoch.loss += loss_sum
        if totals.seen_records < totals.reported_records:  # replayed
            totals.seen_records, totals.seen_loss = totals.reported_records, totals.reported_loss
        self.model_version = max(self.model_version, model_version)
        self.num_minibatches += num_minibatches
        self.staleness_sum += staleness_sum
        self.max_staleness = max(self.max_staleness, staleness_max)
        for bucket, count in enumerate(staleness_histogram):
            self.staleness_histogram[bucket] += count
        self.num_recomputed += num_recomputed
        if skipped:
            self.skipped.setdefault(task_id, {}).update((i, examples) for i, examples in skipped)

    def forget_tasks(self, first: int) -> None:
        """Forget what is known of the tasks before one; a part of a fact."""
        self.skipped = {task: found for task, found in self.skipped.items() if task >= first}
        self._given_back = {task: n for task, n in self._given_back.items() if task >= first}

    def forget_worker(self, worker_id: int) -> None:
        """Forget the totals of a worker that has long been dead; a part of a fact."""
        self._workers.pop(worker_id, None)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "workers": [
                [worker_id, t.reported_records, t.reported_loss]
                for worker_id, t in self._workers.items()
            ],
            "epochs": [[number, e.records, e.loss] for number, e in self._epochs.items()],
            "model_version": self.model_version,
            "num_minibatches": self.num_minibatches,
            "staleness_sum": self.staleness_sum,
            "max_staleness": self.max_staleness,
            "staleness_histogram": list(self.staleness_histogram),
            "num_recomputed": self.num_recomputed,
            "skipped": [
                [task_id, [list(item) for item in minibatches.items()]]
                for task_id, minibatches in self.skipped.items()
            ],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._workers = {
            worker_id: _Totals(records, loss, records, loss)
            for worker_id, records, loss in snapshot["workers"]
        }
        self._epochs = {
            number: _EpochLoss(records, loss) for number, records, loss in snapshot["epochs"]
        }
        self.model_version = snapshot["model_version"]
        self.num_minibatches = snapshot["num_minibatches"]
        self.staleness_sum = snapshot["staleness_sum"]
        self.max_staleness = snapshot["max_staleness"]
        self.staleness_histogram = list(snapshot["staleness_histogram"])
        self.num_recomputed = snapshot["num_recomputed"]
        self.skipped = {task_id: dict(items) for task_id, items in snapshot["skipped"]}
