"""Pictures of the job for the event log, from which its page and its report are drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl.job.status import JobStatus
from elasticdl.master.core import JobCore
from elasticdl.master.ledger import Ledger
from elasticdl.observe.kinds import JobPicture, ParameterTables

MOST_PARTS = 240
"""Parts, at most, of the map of an epoch's tasks; so it takes some hundred bytes."""

_MOST_TASKS = 1_000_000  # of an epoch: more are not looked at, so that the event loop is not held
_MOST_DOING = 200
_TENTHS = "0123456789"
_OF_TABLE = ("rows", "bytes", "pulled", "found", "rows_on_disk", "disk_reads")


def picture_event(core: JobCore, status: JobStatus) -> JobPicture:
    """Return where a job is, as an event."""
    task_map = ""
    doing: tuple[tuple[int, int], ...] = ()
    per_epoch = core.tasks.per_epoch
    if core.config.command == "train" and 0 < per_epoch <= _MOST_TASKS:
        epoch = core.ledger.epochs.first_open
        task_map = map_of(core.ledger.done_of_epoch(epoch))
        doing = tuple(_doing(core.ledger, epoch * per_epoch, per_epoch))
    return JobPicture(
        job_name=status.job_name,
        status=status.status,
        epoch=status.epoch,
        num_epochs=status.num_epochs,
        tasks_todo=status.tasks_todo,
        tasks_doing=status.tasks_doing,
        tasks_done=status.tasks_done,
        records_done=status.records_done,
        records_total=status.records_total,
        records_per_second=round(status.records_per_second, 3),
        loss=status.loss,
        model_version=status.model_version,
        mean_staleness=status.mean_staleness,
        max_staleness=status.max_staleness,
        staleness=_without_zeros(status.staleness_histogram),
        workers=status.num_workers_alive,
        ps_replicas=status.num_ps_alive,
        task_map=task_map,
        doing=doing,
        lag=sum(each.lag for each in status.partitions) if status.partitions else None,
        watermark=status.watermark,
        num_late=status.num_late,
    )


def map_of(is_done: NDArray[np.bool_]) -> str:
    """Return how much of each part of the tasks is done: tenths, and * for all."""
    starts = _starts(len(is_done))
    done = np.add.reduceat(is_done, starts, dtype=np.int64)
    sizes = np.diff(np.append(starts, len(is_done)))
    return "".join(
        "*" if part == size else _TENTHS[part * 10 // size]
        for part, size in zip(done.tolist(), sizes.tolist(), strict=True)
    )


def _starts(num_tasks: int) -> NDArray[np.int64]:
    parts = min(num_tasks, MOST_PARTS)
    return np.arange(parts, dtype=np.int64) * num_tasks // parts


def _doing(ledger: Ledger, first: int, per_epoch: int) -> Iterable[tuple[int, int]]:
    """Yield (part, worker) of leases of the epoch's tasks."""
    starts, count = _starts(per_epoch), 0
    for task_id, held in ledger.leases():
        if first <= task_id < first + per_epoch and count < _MOST_DOING:
            count += 1
            part = int(np.searchsorted(starts, task_id - first, side="right")) - 1
            yield part, held.worker_id


def _without_zeros(histogram: Sequence[int]) -> tuple[int, ...]:
    counts = list(histogram)
    while counts and not counts[-1]:
        counts.pop()
    return tuple(counts)


def tables_event(
    stats: str, hot_keys: Mapping[str, Sequence[tuple[int, float]]] | None = None
) -> ParameterTables:
    """Return what ps replicas hold, as an event.

    Args:
        stats: The text that `PsClient.stats` returns.
        hot_keys: The hottest keys of each table, and their shares.
    """
    replicas = json.loads(stats)
    sums: dict[str, list[int]] = {}
    for replica in replicas:
        for table in replica["tables"]:
            of_table = [table[name] for name in _OF_TABLE]
            before = sums.get(table["name"], [0] * len(of_table))
            sums[table["name"]] = [a + b for a, b in zip(before, of_table, strict=True)]
    empty = ((),) * len(_OF_TABLE)
    rows, num_bytes, pulled, found, rows_on_disk, disk_reads = (
        zip(*sums.values(), strict=True) if sums else empty
    )
    return ParameterTables(
        names=list(sums),
        rows=rows,
        num_bytes=num_bytes,
        replica_rows=[sum(table["rows"] for table in replica["tables"]) for replica in replicas],
        replica_bytes=[replica["resident_bytes"] for replica in replicas],
        pulled=pulled,
        found=found,
        rows_on_disk=rows_on_disk,
        disk_reads=disk_reads,
        # As text: JavaScript has no integers of 64 bits.
        hot_keys=[
            [(str(key), round(share, 4)) for key, share in (hot_keys or {}).get(name, ())]
            for name in sums
        ],
        replica_pulled=[
            sum(table["pulled"] for table in replica["tables"]) for replica in replicas
        ],
    )
