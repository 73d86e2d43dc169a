"""A picture of the job, for displays and for `--summary`."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.job import Label, Role, Task
from elasticdl.job.status import EpochScores, JobStatus, MemberStatus
from elasticdl.launchers.base import END_ORDER
from elasticdl.master.core import JobCore
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.phases import Phase

_LABELS = {
    Phase.PENDING: Label.PENDING,
    Phase.TRAINING: Label.TRAIN,
    Phase.PREDICTING: Label.EVALUATE,
    Phase.EVALUATING: Label.EVALUATE,
    Phase.EXPORTING: Label.CHECKPOINT,
    Phase.CHECKPOINTING: Label.CHECKPOINT,
    Phase.AUDITING: Label.CHECKPOINT,
    Phase.FINISHED: Label.IDLE,
    Phase.FAILED: Label.IDLE,
}
_WORDS = {Phase.TRAINING: "running", Phase.PREDICTING: "running"}


def picture(core: JobCore, now: float) -> JobStatus:
    """Return what is to be seen of a job at `now`, in seconds since it began."""
    is_training = core.config.command == "train"
    ledger, meter = core.ledger, core.meter
    table, done = {
        "train": (core.tasks.training, ledger.training_records_done),
        "evaluate": (core.tasks.validation, ledger.other_records_done),
        "predict": (core.tasks.prediction, ledger.other_records_done),
    }[core.config.command]
    total = table.num_records * (core.tasks.num_epochs if is_training else 1)
    total -= ledger.missing.num_positions if is_training else 0
    status = JobStatus(
        job_name=core.config.cluster.job_name,
        status=_WORDS.get(core.phase, str(core.phase)),
        message=_message(core),
        seconds=core.history.ended_seconds if core.has_ended else now,
        epoch=ledger.epochs.first_open,
        num_epochs=core.tasks.num_epochs,
        tasks_todo=ledger.num_todo,
        tasks_doing=ledger.num_doing,
        tasks_done=ledger.num_done,
        records_done=min(total, done + meter.records_in_flight),
        records_total=total,
        records_per_second=_records_per_second(core, done, now),
        loss=meter.loss,
        model_version=meter.model_version,
        mean_staleness=meter.mean_staleness,
        max_staleness=meter.max_staleness,
        metrics=core.evaluations.metrics,
        num_workers_alive=core.members.num_alive(Role.WORKER),
        num_ps_alive=core.members.num_alive(Role.PS),
        ledger=core.history.ledger,
        skipped=_skipped(core),
        checkpoints=tuple(core.parameters.schedule.kept),
        output=_output(core),
        recoveries=core.parameters.recoveries,
        staleness_histogram=tuple(meter.staleness_histogram),
        num_recomputed=meter.num_recomputed,
        epoch_loss=meter.epoch_loss(ledger.epochs.first_open) if is_training else None,
        evaluated_records=core.evaluations.num_records,
        counters=dict(core.counters.values),
        num_unreadable=ledger.missing.num_unreadable,
        num_late=ledger.missing.num_late,
        history=tuple(_history(core)) if is_training else (),
    )
    return core.features.show(status)


def _history(core: JobCore) -> Iterator[EpochScores]:
    """Yield the results of the complete epochs.

    An epoch has the evaluation right after it. If there is none, it has the last one within it.
    """
    results = core.evaluations.results
    for epoch in range(core.ledger.epochs.num_complete):
        after = [each.metrics for each in results if each.num_epochs == epoch + 1]
        within = [each.metrics for each in results if each.num_epochs == epoch]
        yield EpochScores(
            core.meter.epoch_loss(epoch),
            {},  # metrics of training are a feature's to show
            next(iter(after), within[-1] if within else {}),
        )


def learning_rate_of(core: JobCore) -> float | None:
    """Return the rate of the last known step, or the rate that was set; None: not known."""
    set_by_callback = core.features.of(Callbacks).learning_rate
    given = core.config.training.learning_rate if set_by_callback is None else set_by_callback
    return given if core.meter.learning_rate is None else core.meter.learning_rate


def label_of(core: JobCore) -> Label:
    """Return the label of the master's time, which says what the job as a whole is doing."""
    return Label.RECOVER if core.parameters.is_recovering else _LABELS[core.phase]


def members(core: JobCore, now: float) -> tuple[MemberStatus, ...]:
    """Return the processes of the job that are not known to be gone."""
    return tuple(
        MemberStatus(
            role=member.role,
            index=member.index,
            state=member.state,
            pid=member.pid,
            address=member.address,
            seconds=now - member.since,
            silent_seconds=now - member.last_heard,
            tasks_done=core.ledger.done_by_worker.get(member.index, 0)
            if member.role is Role.WORKER
            else 0,
            usage=member.usage,
        )
        for role in Role
        for member in core.members.present(role)
    )


def _message(core: JobCore) -> str:
    if core.message or core.has_ended:
        return core.message
    replicas = 0 if core.parameters.replicas is None else core.parameters.replicas.number
    # In a job without ps replicas the workers hold the parameters: no other process is missing.
    missing = sum(not address for address in core.parameters.route.addresses) if replicas else 0
    if core.phase is not Phase.PENDING:
        lost = [f"{missing} of {replicas} ps replicas are being restored"] if missing else []
        troubles = core.features.troubles()
        return "; ".join([*core.plan.shortcomings(), *lost, *troubles, *_pending(core)])
    whom = f"{missing} of {replicas} ps replicas" if missing else "workers"
    return "; ".join([f"waiting for {whom}", *_pending(core)])


def _pending(core: JobCore) -> list[str]:
    """Say why processes are not started yet, in the words of whatever runs them."""
    names: dict[str, list[str]] = {}
    for role in reversed(END_ORDER):
        for member in core.members.present(role):
            if member.pending and not member.is_stopping:
                names.setdefault(member.pending, []).append(member.name)
    withheld = core.processes.room.num_withheld
    words = [f"{_several(found)} pending: {why}" for why, found in names.items()]
    if withheld:
        workers = "1 worker waits" if withheld == 1 else f"{withheld} workers wait"
        words.append(f"{workers} until all ps replicas have a place")
    return words


def _several(names: list[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more are" if others else f"{first} is"


def _records_per_second(core: JobCore, done: int, now: float) -> float:
    """Return the throughput: of the last seconds, and once all is done of the whole."""
    began, ended = core.history.training_began, core.history.training_ended
    if began is not None and ended is not None:
        return done / (ended - began) if ended > began else 0.0
    return core.meter.records_per_second(now)


def _skipped(core: JobCore) -> tuple[str, ...]:
    return tuple(
        f"{_describe(core.tasks.task(task_id))}, minibatch {index}"
        for task_id, indexes in sorted(core.meter.skipped.items())
        for index in sorted(indexes)
    )


def _describe(task: Task) -> str:
    shard = task.shard
    return f"epoch {task.epoch}, records {shard.start} to {shard.end} of {shard.name}"


def _output(core: JobCore) -> str:
    output = core.config.checkpoint.output
    return str(output) if output is not None and core.phase is Phase.FINISHED else ""
