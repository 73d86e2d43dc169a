"""The task ledger: leases a second with a journal in memory, in SQLite and in etcd.

In one cycle a task is leased, journalled, reported as done, and journalled again. The peers do the
least possible for the same: a `queue.Queue` without a journal, and a bare INSERT for each lease and
each report. Targets: 100,000 leases/s in memory, 5,000 with SQLite.

The master's event loop is measured with a million tasks in the ledger and workers that all ask at
once. It compares group commit with one commit for each call, and measures the longest pause of the
loop. Each run makes a snapshot.

    make kubernetes-tools TOOLS=etcd; python benchmarks/ledger.py
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import queue
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from report import Row, asked_for_short, compare, interleave, write_results

from elasticdl.config import ClusterSection, DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.job import Lease, Outcome, Shard, TaskReport
from elasticdl.master.durable import DurableJob, JobData, open_job
from elasticdl.master.group_commit import GroupCommit
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger
from elasticdl.master.tasks import JobTasks, TaskTable
from elasticdl.packages.etcd.journal import EtcdState
from elasticdl.state.base import State
from elasticdl.state.memory import MemoryState
from elasticdl.state.sqlite import SqliteState
from tests.clusters.etcd import EtcdServer

NUM_WORKERS = 32
MEMORY_CYCLES, SQLITE_CYCLES, JOB_CYCLES = 5_000, 1_000, 1_000  # short: some runs are undisturbed
RUNS = 60
NUM_TASKS, NUM_ASKING = 1_000_000, 500
GROUP_CYCLES, GROUP_RUNS = 15_000, 5  # a snapshot comes after 20,000 facts
WATCH_SECONDS = 0.002
T = TypeVar("T")
_INSERT = "INSERT INTO journal (facts) VALUES (?)"


def main() -> None:
    """Measure and write `benchmarks/results/ledger.json`."""
    is_short = asked_for_short(__doc__)
    sides = interleave(
        {
            "leases, journal in memory": lambda: ledger_rate(MemoryState(), MEMORY_CYCLES),
            "leases alone, journal in memory": lambda: lease_rate(MemoryState(), MEMORY_CYCLES),
            "queue.Queue": lambda: queue_rate(MEMORY_CYCLES),
            "leases, journal in SQLite": sqlite_ledger_rate,
            "bare INSERT": insert_rate,
            "whole core, journal in SQLite": sqlite_job_rate,
        },
        2 if is_short else RUNS,
    )
    rows = [
        compare(
            "lease alone, journal in memory, against queue.Queue.get",
            "leases/s",
            sides["leases alone, journal in memory"],
            sides["queue.Queue"],
        ),
        compare(
            "lease + report, journal in memory, against queue.Queue.get",
            "leases/s",
            sides["leases, journal in memory"],
            sides["queue.Queue"],
        ),
        compare(
            "lease + report, journal in SQLite, against two bare INSERTs",
            "leases/s",
            sides["leases, journal in SQLite"],
            sides["bare INSERT"],
        ),
        compare(
            "the same through the whole core (members, meter, phases)",
            "leases/s",
            sides["whole core, journal in SQLite"],
            sides["bare INSERT"],
        ),
    ]
    group_rows, holds = measure_group_commit(2 if is_short else GROUP_RUNS)
    rows += group_rows
    notes = {
        "workers": NUM_WORKERS,
        "targets": {"memory": 100_000, "sqlite": 5_000},
        "longest hold of the event loop, seconds": holds,
    }
    write_results("ledger", rows, notes, keep=not is_short)


def ledger_rate(state: State, cycles: int) -> float:
    """Lease and report tasks, each written down before the next thing happens."""
    ledger, journal = make_ledger(cycles)
    workers = itertools.cycle(range(NUM_WORKERS))

    def cycle(number: int) -> None:
        worker = next(workers)
        lease = ledger.lease(worker, number)
        state.append(journal.take())
        ledger.report(worker, lease.task.id, lease.number, Outcome.DONE)
        state.append(journal.take())

    return rate(cycle, cycles)


def lease_rate(state: State, cycles: int) -> float:
    """Lease tasks only; all are held at the end."""
    ledger, journal = make_ledger(cycles)

    def cycle(number: int) -> None:
        ledger.lease(number % NUM_WORKERS, number)
        state.append(journal.take())

    return rate(cycle, cycles)


def make_ledger(num_tasks: int) -> tuple[Ledger, Journal]:
    """A ledger of so many tasks, from ten shards, in a random order."""
    shards = [Shard(f"part-{n}", 0, num_tasks * 10) for n in range(10)]
    tables = (TaskTable(given, 100) for given in (shards, (), ()))
    journal = Journal()
    tasks = JobTasks(*tables, num_epochs=1)
    ledger = Ledger(tasks, journal, seed=0, shuffle=True, max_retries=3, minibatch_size=10)
    return ledger, journal


def queue_rate(cycles: int) -> float:
    """Take tasks from a queue that keeps nothing of them."""
    tasks: queue.Queue[tuple[int, int]] = queue.Queue()
    for number in range(cycles):
        tasks.put((number, number + 100))
    return rate(lambda _: tasks.get(), cycles)


def sqlite_ledger_rate() -> float:
    """Lease and report with the journal in SQLite."""
    with folder() as path:
        state = SqliteState(path / "state.sqlite")
        found = ledger_rate(state, SQLITE_CYCLES)
        state.close()
        return found


def insert_rate() -> float:
    """Insert two rows in two transactions, with the settings of our journal and nothing else."""
    with folder() as path:
        database = sqlite3.connect(path / "bare.sqlite", isolation_level=None)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE journal (number INTEGER PRIMARY KEY, facts TEXT)")

        def cycle(number: int) -> None:
            database.execute(_INSERT, (f'[["lease",{number},7,1,{number}]]',))
            database.execute(_INSERT, (f'[["done",{number}]]',))

        found = rate(cycle, SQLITE_CYCLES)
        database.close()
        return found


def sqlite_job_rate() -> float:
    """Lease and report through all that the master does for a call, but for the socket."""
    with folder() as path:
        job = make_job(SqliteState(path / "state.sqlite"))
        core = job.core
        for worker in range(NUM_WORKERS):
            job.handle(lambda worker=worker: core.register_worker(worker, "s", 1, 0.0))

        def cycle(number: int) -> None:
            worker = number % NUM_WORKERS
            lease, _ = job.handle(lambda: core.lease(worker, "s", number + 1, 0.0))
            assert isinstance(lease, Lease), lease
            report = TaskReport(lease.task.id, lease.number, Outcome.DONE, num_records=100)
            job.handle(lambda: core.report(worker, "s", report, 0.0))

        found = rate(cycle, JOB_CYCLES)
        job.close()
        return found


Journals = dict[str, Callable[[Path], State]]


def measure_group_commit(runs: int) -> tuple[list[Row], dict[str, float]]:
    """Measure the master's event loop with each journal; without etcd if it is not built."""
    holds: dict[str, float] = {}
    with contextlib.ExitStack() as ends:
        journals: Journals = {
            "memory": lambda _: MemoryState(),
            "SQLite": lambda path: SqliteState(path / "state.sqlite"),
        }
        try:
            server = ends.enter_context(EtcdServer(ends.enter_context(folder())))
            endpoint = server.endpoint
            journals["etcd"] = lambda path: EtcdState([endpoint], path.name)
        except FileNotFoundError as error:
            print(f"without etcd: {error}")

        def side(name: str, in_groups: bool) -> Callable[[], float]:
            def run() -> float:
                with folder() as path:
                    found, hold = asyncio.run(event_loop_rate(journals[name](path), in_groups))
                key = f"{name}, {'group commit' if in_groups else 'one commit a call'}"
                holds[key] = max(holds.get(key, 0.0), round(hold, 4))
                return found

            return run

        sides = interleave({f"{n} {g}": side(n, g) for n in journals for g in (True, False)}, runs)
    rows = [
        compare(
            f"a million tasks, {NUM_ASKING} workers at once, journal in {name}: group commit "
            "against one commit a call",
            "leases/s",
            sides[f"{name} {True}"],
            sides[f"{name} {False}"],
        )
        for name in journals
    ]
    return rows, holds


async def event_loop_rate(state: State, in_groups: bool) -> tuple[float, float]:
    """Return the leases a second that many workers get at once, and the longest hold of the loop.

    Each lease is reported as done before the next is asked for; an answer waits for its facts.
    """
    job = make_job(state, NUM_TASKS)
    core = job.core
    failures: list[Exception] = []
    commit = GroupCommit(job, lambda action: None, lambda: None, failures.append)

    async def call(event: Callable[[], T]) -> T:
        if not in_groups:
            return job.handle(event)[0]
        answer = commit.happen(event)
        await commit.written()
        return answer

    async def work(worker: int) -> None:
        await call(lambda: core.register_worker(worker, "s", 1, 0.0))
        for number in range(GROUP_CYCLES // NUM_ASKING):
            lease = await call(lambda number=number: core.lease(worker, "s", number + 1, 0.0))
            report = TaskReport(lease.task.id, lease.number, Outcome.DONE, num_records=100)
            await call(lambda report=report: core.report(worker, "s", report, 0.0))
            await asyncio.sleep(0)

    hold = 0.0

    async def watch() -> None:
        nonlocal hold
        while True:
            began = time.perf_counter()
            await asyncio.sleep(WATCH_SECONDS)
            hold = max(hold, time.perf_counter() - began - WATCH_SECONDS)

    gc.collect()
    watcher = asyncio.ensure_future(watch())
    began = time.perf_counter()
    await asyncio.gather(*(work(worker) for worker in range(NUM_ASKING)))
    found = GROUP_CYCLES / (time.perf_counter() - began)
    watcher.cancel()
    commit.close()
    job.close()
    if failures:
        raise failures[0]
    return found, hold


def make_job(state: State, num_tasks: int = 2 * JOB_CYCLES) -> DurableJob:
    """A job whose tasks have 100 records each."""
    config = JobConfig(
        command="train",
        model=ModelSection(model_def="zoo.model.forward"),
        data=DataSection(training_data="train"),
        training=TrainingSection(minibatch_size=10, num_minibatches_per_task=10),
        cluster=ClusterSection(num_workers=NUM_WORKERS),
    )
    data = JobData(training=(Shard("part-0", 0, num_tasks * 100),))
    return open_job(state, config, lambda: data)[0]


def rate(cycle: Callable[[int], object], cycles: int) -> float:
    """Return cycles a second."""
    gc.collect()
    began = time.perf_counter()
    for number in range(cycles):
        cycle(number)
    return cycles / (time.perf_counter() - began)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


if __name__ == "__main__":
    main()
