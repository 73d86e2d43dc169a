"""The proof at the end: what the replicas have applied against what there was to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from elasticdl.job import EpochLedger, TaskAudit
from elasticdl.master.tasks import JobTasks

Replicas = Sequence[Iterable[TaskAudit]]
"""For each ps replica (or the one store of a Local job), what it has applied of every task."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of the records. `problem` says what must not be; "" if all is well.

    `lost` records that are explained (minibatches skipped because of NaN) are no problem; nor are
    records that every replica lacks alike of tasks that were done: a `feed` that filters leaves
    records out, and `note` says how many.
    """

    ledger: tuple[EpochLedger, ...]
    problem: str = ""
    note: str = ""


@dataclass(slots=True)
class _Count:
    trained_once: int = 0
    repeated: int = 0
    lost: int = 0


def prove(
    tasks: JobTasks,
    minibatch_size: int,
    replicas: Replicas,
    skipped: Mapping[int, Sequence[int]],
    lost: Mapping[int, Set[int]] | None = None,
) -> Proof:
    """Compare what every replica has applied with the job's training tasks.

    A record counts as trained once only if every replica has applied its minibatch, once. Where
    replicas differ, the one that lacks most or repeated most decides.

    Args:
        tasks: What there was to do.
        minibatch_size: Records of a minibatch; the last one of a task may be smaller.
        replicas: What each replica says; all are asked when no push is under way.
        skipped: Training task -> minibatches left out on purpose (`--on_nan=skip`).
        lost: Replica -> training tasks of which it lost a part with its memory, and was not given
            it again (`--ps_recovery=latest`).
    """
    lost = lost or {}
    applied = [{entry.task_id: entry for entry in replica} for replica in replicas]
    ledger: list[EpochLedger] = []
    disagreements = unexplained = missing = 0
    for epoch in range(tasks.num_epochs):
        total = _Count()
        for task_id in tasks.epoch_ids(epoch):
            records = tasks.task(task_id).shard.num_records
            left_out = sum(
                min(minibatch_size, records - index * minibatch_size)
                for index in set(skipped.get(task_id, ()))
            )
            entries = [of_replica.get(task_id, TaskAudit(task_id, 0, 0)) for of_replica in applied]
            count = _worst(entries, records, minibatch_size, left_out)
            is_known = [task_id in lost.get(index, ()) for index in range(len(entries))]
            if any(is_known):
                missing += count.lost
                entries = [e for e, known in zip(entries, is_known, strict=True) if not known]
            total.trained_once += count.trained_once
            total.repeated += count.repeated
            total.lost += count.lost
            unexplained += 0 if any(is_known) else max(0, count.lost - left_out)
            # Without an entry nothing of the task has arrived, though it has records.
            is_missing = any(entry.next_index == 0 for entry in entries)
            disagreements += is_missing or len(Counter(map(_essence, entries))) > 1
        ledger.append(
            EpochLedger(
                epoch,
                tasks.training.num_records,
                total.trained_once,
                total.repeated,
                total.lost,
            )
        )
    repeated = sum(line.repeated for line in ledger)
    return Proof(tuple(ledger), _problem(repeated, disagreements), _note(unexplained, missing))


def _worst(
    entries: Sequence[TaskAudit], records: int, minibatch_size: int, left_out: int
) -> _Count:
    """Return what became of a task's records, by the replicas that lack most and repeated most."""
    lost = repeated = 0
    for entry in entries:
        reached = min(entry.next_index * minibatch_size, records)
        # Records that should have come with the minibatches up to the watermark.
        due = max(0, reached - left_out)
        lost = max(lost, records - min(due, entry.num_records))
        repeated = max(repeated, entry.num_records - due)
    return _Count(max(0, records - lost - repeated), repeated, lost)


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
        notes.append(f"{unexplained} records were not trained, as is when `feed` leaves some out")
    return "; ".join(notes)
