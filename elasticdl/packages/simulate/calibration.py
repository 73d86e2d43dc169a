"""Calculates costs from two readings of a real job of one worker, thread by thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticdl.errors import JobFailedError
from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.pace import records_per_second
from elasticdl.runtime.proc import RunningThread

_STAGES = 3  # threads of a worker that give way to the one that computes: feed, prepare, commit


@dataclass(frozen=True)
class Reading:
    """The state of a job at one time.

    seconds: The time.
    busy: The seconds of all cores of the machine, for all processes.
    worker, ps, master: The threads of the processes, for all workers and for all ps replicas
        together.
    progress: For each worker, the time of its report, and the minibatches that it had trained.
    bytes_sent, bytes_received: The bytes of the workers so far.
    """

    seconds: float
    busy: float
    worker: Sequence[RunningThread]
    ps: Sequence[RunningThread]
    master: Sequence[RunningThread]
    progress: Sequence[tuple[float, int]]
    bytes_sent: float
    bytes_received: float


@dataclass(frozen=True)
class JobSpeed:
    """The speed of a job between two readings.

    rate: Minibatches a second.
    left_cores: The cores of the machine that other processes did not use.
    own_cores: The cores that the job used.
    """

    rate: float
    left_cores: float
    own_cores: float


@dataclass(frozen=True)
class MinibatchUse:
    """The work of the processes of a job for each minibatch, in seconds of a core."""

    speed: JobSpeed
    feed: float
    prepare: float
    compute: float
    commit: float
    ps: float
    master: float
    bytes_sent: float
    bytes_received: float


def speed_between(
    before: Reading, after: Reading, cores: float, is_first: bool = False
) -> JobSpeed:
    """Return the speed of a job.

    Args:
        before: A reading when the job trains.
        after: A reading some seconds later, with the same workers.
        cores: The cores of the machine.
        is_first: Whether the job has priority over all others, which use what it leaves.

    Raises:
        JobFailedError: Nothing was trained between the readings.
    """
    pairs = list(zip(before.progress, after.progress, strict=True))
    if any(end <= begin or last <= first for (begin, first), (end, last) in pairs):
        raise JobFailedError(
            "calibration: expected every worker to train minibatches while it is measured, and one "
            "did not; are its steps shorter than seconds?"
        )
    seconds = after.seconds - before.seconds
    own = sum(
        sum(_worked(one, other).values())
        for one, other in (
            (before.worker, after.worker),
            (before.ps, after.ps),
            (before.master, after.master),
        )
    )
    # Cores that other programs used were not there for the job.
    others = 0.0 if is_first else max(0.0, after.busy - before.busy - own) / seconds
    return JobSpeed(
        rate=sum((last - first) / (end - begin) for (begin, first), (end, last) in pairs),
        left_cores=max(0.1, cores - others),
        own_cores=own / seconds,
    )


def use_between(
    before: Reading, after: Reading, cores: float, is_first: bool = False
) -> MinibatchUse:
    """Return the costs of a minibatch in a job of one worker; see `speed_between`.

    Raises:
        JobFailedError: Nothing was trained, or the threads cannot be told apart.
    """
    speed = speed_between(before, after, cores, is_first)
    num = speed.rate * (after.seconds - before.seconds)
    # The worker gives its other three threads a lower priority, in the order feed, prepare, commit.
    beside = [thread for thread in after.worker if thread.priority > 0][:_STAGES]
    if len(beside) < _STAGES:
        raise JobFailedError(
            f"calibration: expected {_STAGES} threads of the worker beside the one that computes, "
            f"found {len(beside)}"
        )
    worked = _worked(before.worker, after.worker)
    feed, prepare, commit = (worked[thread.thread_id] / num for thread in beside)
    return MinibatchUse(
        speed=speed,
        feed=feed,
        prepare=prepare,
        compute=sum(worked.values()) / num - feed - prepare - commit,
        commit=commit,
        ps=sum(_worked(before.ps, after.ps).values()) / num,
        master=sum(_worked(before.master, after.master).values()) / num,
        bytes_sent=(after.bytes_sent - before.bytes_sent) / num,
        bytes_received=(after.bytes_received - before.bytes_received) / num,
    )


def _worked(before: Sequence[RunningThread], after: Sequence[RunningThread]) -> dict[int, float]:
    """Return the work of each thread; a thread that began in between did all of its work then."""
    known = {thread.thread_id: thread.seconds for thread in before}
    return {t.thread_id: t.seconds - known.get(t.thread_id, 0.0) for t in after}


def costs_of(
    model: str,
    minibatch_size: int,
    minibatches_per_task: int,
    record_bytes: float,
    start: float,
    one: MinibatchUse,
    several: MinibatchUse | None = None,
    num_several: int = 1,
) -> Costs:
    """Return the costs of a model.

    Args:
        model: The name of the model.
        minibatch_size: The records of a minibatch.
        minibatches_per_task: The number for which the job was run.
        record_bytes: The bytes of a record in storage.
        start: Seconds of a core until a worker trains.
        one: The use of a job of one worker and one ps replica.
        several: The use of a job with several replicas, which shows the cost of a frame.
        num_several: The number of these replicas.
    """
    costs = Costs(
        model=model,
        minibatch_size=minibatch_size,
        minibatches_per_task=minibatches_per_task,
        feed=one.feed,
        prepare=one.prepare,
        compute=one.compute,
        commit=one.commit,
        ps=one.ps,
        master=one.master * minibatches_per_task,
        bytes_pushed=one.bytes_sent,
        bytes_pulled=one.bytes_received,
        record_bytes=record_bytes,
        start=start,
    )
    if several is not None and num_several > 1:
        more = num_several - 1
        # The jobs differ only in the number of ps replicas, so the difference is the cost of the
        # frames.
        by_worker = several.prepare + several.commit - one.prepare - one.commit
        costs = replace(
            costs,
            worker_frame=max(0.0, by_worker / 2 / more),
            ps_frame=max(0.0, (several.ps - one.ps) / more),
        )
    return replace(costs, wait=_wait(costs, one))


def _wait(costs: Costs, one: MinibatchUse) -> float:
    """Return the wait at each exchange that makes the simulated job as slow as the real one."""
    alone = Cluster(workers=1, ps=1, shared_cores=one.speed.left_cores)

    def is_slower(wait: float) -> bool:
        found = records_per_second(replace(costs, wait=wait), alone)
        return found < one.speed.rate * costs.minibatch_size

    low, high = 0.0, 2.0 / one.speed.rate
    if is_slower(low):
        return 0.0
    # Twelve halvings leave an error of less than a thousandth.
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if is_slower(middle) else (middle, high)
    return low
