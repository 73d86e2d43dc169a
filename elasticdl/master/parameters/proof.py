"""The proof at the end: what the replicas have applied against what there was to do."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from elasticdl.job import TaskAudit
from elasticdl.job.status import EpochLedger
from elasticdl.master.missing_tasks import Made
from elasticdl.master.tasks import JobTasks

Replicas = Sequence[Iterable[TaskAudit]]
"""For each ps replica (or the one store of a Local job), what it has applied of every task."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the proof. `problem` says what is wrong; "" if all is well.

    `lost` records are no problem if they are explained: their minibatches were skipped because of
    NaN. They are no problem either if every replica has all minibatches of the task, alike: a
    worker was lost before it could report a minibatch that it had skipped. `note` says how many.
    """

    ledger: tuple[EpochLedger, ...]
    problem: str = ""
    note: str = ""


@dataclass(slots=True)
class _Count:
    """The counts of records of one task or of an epoch."""

    records: int = 0
    trained_once: int = 0
    repeated: int = 0
    lost: int = 0
    examples: int = 0

    def add(self, other: _Count) -> None:
        """Add those of a task."""
        self.records += other.records
        self.trained_once += other.trained_once
        self.repeated += other.repeated
        self.lost += other.lost
        self.examples += other.examples


def prove(
    tasks: JobTasks,
    minibatch_size: int,
    replicas: Replicas,
    skipped: Mapping[int, Mapping[int, int]],
    lost: Mapping[int, Set[int]] | None = None,
    uneven: Mapping[int, Made] | None = None,
    set_aside: Set[int] = frozenset(),
    begun: Callable[[int], bool] = lambda task_id: True,
    missing: Mapping[int, int] | None = None,
) -> Proof:
    """Compare what every replica has applied with the job's training tasks.

    A record counts as trained once only if every replica has applied its minibatch, once. If
    replicas differ, the replica that lacks most or repeated most decides.

    Replicas count examples. The ledger knows how many minibatches and examples `feed` made of a
    task that was done. If each replica has applied just these, each record was trained once. An
    example too few or too many counts as one record. This is exact if no record makes several
    examples. Otherwise the result is at least as bad as the truth.

    Args:
        tasks: The tasks of the job.
        minibatch_size: Records of a minibatch; the last one of a task may be smaller.
        replicas: The answer of each replica; all are asked when no push is under way.
        skipped: Training task -> minibatch left out on purpose (`--on_nan=skip`) -> its examples,
            -1 if not known.
        lost: Replica -> training tasks of which it lost a part with its memory, and was not given
            it again (`--ps_recovery=latest`).
        uneven: Minibatches and examples of done tasks, if `feed` made not one example of each
            record.
        set_aside: Tasks that failed too often. Nobody knows how many examples they would have.
        begun: Whether a training task was ever leased; the others were left out when a callback
            stopped training, and are in no line of the ledger.
        missing: How many more positions than records a task has; may be negative.
    """
    lost, uneven, holes = lost or {}, uneven or {}, missing or {}
    applied = [{entry.task_id: entry for entry in replica} for replica in replicas]
    ledger: list[EpochLedger] = []
    disagreements = unexplained = gone = 0
    for epoch in range(tasks.num_epochs):
        total = _Count()
        for task_id in filter(begun, tasks.epoch_ids(epoch)):
            records = tasks.task(task_id).shard.num_records
            made = uneven.get(task_id) or Made(-(-records // minibatch_size), records)
            records -= holes.get(task_id, 0)
            left_out = _left_out(skipped.get(task_id, {}), made, minibatch_size)
            entries = [of_replica.get(task_id, TaskAudit(task_id, 0, 0)) for of_replica in applied]
            if task_id in set_aside and uneven:
                examples = max((entry.num_records for entry in entries), default=0)
                total.add(_Count(records, lost=records, examples=examples))
                continue
            count = _worst(entries, records, made, minibatch_size, left_out)
            is_known = [task_id in lost.get(index, ()) for index in range(len(entries))]
            # A loss that the user accepted (`--ps_recovery=latest`) is no disagreement: such a
            # replica is left out of the comparison.
            if any(is_known):
                gone += count.lost
                entries = [e for e, known in zip(entries, is_known, strict=True) if not known]
            total.add(count)
            if task_id in set_aside:
                continue  # why its records are lost, or not everywhere, is said already
            unexplained += 0 if any(is_known) else max(0, count.lost - left_out)
            is_missing = any(entry.next_index < made.minibatches for entry in entries)
            disagreements += is_missing or len(Counter(map(_essence, entries))) > 1
        if total.records:
            ledger.append(EpochLedger(epoch, **dataclasses.asdict(total)))
    repeated = sum(line.repeated for line in ledger)
    return Proof(tuple(ledger), _problem(repeated, disagreements), _note(unexplained, gone))


def _left_out(skipped: Mapping[int, int], made: Made, minibatch_size: int) -> int:
    """Count the examples of a task's minibatches that were left out on purpose."""
    return sum(
        min(minibatch_size, made.examples - index * minibatch_size) if examples < 0 else examples
        for index, examples in skipped.items()
    )


def _worst(
    entries: Sequence[TaskAudit], records: int, made: Made, minibatch_size: int, left_out: int
) -> _Count:
    """Return what became of a task's records, by the replicas that lack most and repeated most."""
    lost = repeated = 0
    for entry in entries:
        reached = made.examples
        if entry.next_index < made.minibatches:
            reached = min(reached, entry.next_index * minibatch_size)
        # Examples that should have come with the minibatches up to the watermark.
        due = max(0, reached - left_out)
        lost = max(lost, made.examples - min(due, entry.num_records))
        repeated = max(repeated, entry.num_records - due)
    # Examples are counted, but records are told: a record cannot be lost more than once.
    lost, repeated = min(lost, records), min(repeated, records)
    return _Count(records, max(0, records - lost - repeated), repeated, lost, made.examples)


def _essence(entry: TaskAudit) -> tuple[int, int]:
    return entry.next_index, entry.num_records


def _problem(repeated: int, disagreements: int) -> str:
    problems = []
    if repeated:
        problems.append(f"{repeated} records were trained more than once")
    if disagreements:
        problems.append(f"the replicas have not applied the same of {disagreements} tasks")
    return "; ".join(problems)


def _note(unexplained: int, missing: int) -> str:
    notes = []
    if missing:
        notes.append(f"{missing} records were lost to a ps replica with its memory")
    if unexplained:
        notes.append(
            f"{unexplained} records were not trained: a worker that was lost had skipped them, and "
            "could not report it"
        )
    return "; ".join(notes)
