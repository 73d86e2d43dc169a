"""The nouns of `elasticdl.job` as messages of `proto/elasticdl.proto`, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
from google.protobuf import json_format

from elasticdl.errors import ElasticdlError
from elasticdl.job import (
    BestEvaluation,
    CallbackCall,
    CallbackResult,
    EpochLedger,
    Finished,
    HotKeys,
    JobStatus,
    Label,
    Lease,
    MeasuredWindow,
    MemberStatus,
    MetricStates,
    Moment,
    MomentKind,
    Outcome,
    PartitionStatus,
    Position,
    Progress,
    PsRoute,
    Recovery,
    Role,
    Shard,
    Task,
    TaskKind,
    TaskReport,
    Usage,
    Wait,
    WindowStatus,
)
from elasticdl.rpc import elasticdl_pb2 as pb

_ROLES = {
    Role.MASTER: pb.ROLE_MASTER,
    Role.WORKER: pb.ROLE_WORKER,
    Role.PS: pb.ROLE_PS,
}
_KINDS = {
    TaskKind.TRAINING: pb.TASK_KIND_TRAINING,
    TaskKind.EVALUATION: pb.TASK_KIND_EVALUATION,
    TaskKind.PREDICTION: pb.TASK_KIND_PREDICTION,
    TaskKind.METRICS: pb.TASK_KIND_METRICS,
    TaskKind.EXPORT: pb.TASK_KIND_EXPORT,
    TaskKind.CALLBACKS: pb.TASK_KIND_CALLBACKS,
}
_OUTCOMES = {
    Outcome.DONE: pb.OUTCOME_DONE,
    Outcome.FAILED: pb.OUTCOME_FAILED,
    Outcome.RETURNED: pb.OUTCOME_RETURNED,
}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}
_KINDS_BACK = {number: kind for kind, number in _KINDS.items()}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}


class MessageError(ElasticdlError):
    """A message whose content makes no sense; the other end runs another version, or is foreign."""


def role_to_message(role: Role) -> pb.Role.ValueType:
    """Return the number of a role."""
    return _ROLES[role]


def role_from_message(number: pb.Role.ValueType) -> Role:
    """Return the role of a number."""
    role = _ROLES_BACK.get(number)
    if role is None:
        raise MessageError(f"expected a role, found number {number}")
    return role


def states_to_message(states: MetricStates) -> list[pb.MetricState]:
    """Pack metric states."""
    return [
        pb.MetricState(
            name=name,
            arrays=[
                pb.Array(shape=array.shape, data=np.ascontiguousarray(array, "<f8").tobytes())
                for array in arrays
            ],
        )
        for name, arrays in states.items()
    ]


def states_from_message(messages: Iterable[pb.MetricState]) -> MetricStates:
    """Unpack metric states.

    Raises:
        MessageError: An array's bytes do not fill its shape.
    """
    states: MetricStates = {}
    for message in messages:
        arrays = states.setdefault(message.name, [])
        for array in message.arrays:
            # Python's integers: a product of hostile dimensions must not wrap round.
            if any(n < 0 for n in array.shape) or len(array.data) != 8 * math.prod(array.shape):
                raise MessageError(
                    f"metric {message.name!r}: expected float64 of shape {tuple(array.shape)}, "
                    f"found {len(array.data)} bytes"
                )
            values = np.frombuffer(array.data, "<f8").reshape(tuple(array.shape))
            arrays.append(values.astype(np.float64))
    return states


def answer_to_message(answer: Lease | Wait | Finished) -> pb.LeaseResponse:
    """Pack the answer to a request for a task."""
    match answer:
        case Lease(task, number, states, generation, is_suspect, learning_rate, callbacks, late):
            return pb.LeaseResponse(
                lease=pb.Lease(
                    task=_task_to_message(task),
                    number=number,
                    metric_states=states_to_message(states),
                    generation=generation,
                    is_suspect=is_suspect,
                    learning_rate=learning_rate,
                    callbacks=None if callbacks is None else _call_to_message(callbacks),
                    late_before=late,
                )
            )
        case Wait(seconds):
            return pb.LeaseResponse(wait=pb.Wait(seconds=seconds))
        case Finished():
            return pb.LeaseResponse(finished=pb.Finished())


def answer_from_message(message: pb.LeaseResponse) -> Lease | Wait | Finished:
    """Unpack the answer to a request for a task."""
    match message.WhichOneof("answer"):
        case "lease":
            lease = message.lease
            states = states_from_message(lease.metric_states)
            return Lease(
                _task_from_message(lease.task),
                lease.number,
                states,
                lease.generation,
                lease.is_suspect,
                lease.learning_rate if lease.HasField("learning_rate") else None,
                _call_from_message(lease.callbacks) if lease.HasField("callbacks") else None,
                lease.late_before,
            )
        case "wait":
            return Wait(message.wait.seconds)
        case "finished":
            return Finished()
        case _:
            raise MessageError("expected a lease, wait or finished, found an empty answer")


def position_from_message(message: pb.AnnounceRequest) -> Position:
    """Unpack where a worker is."""
    return Position(
        message.task_id,
        message.lease,
        message.minibatch,
        message.stage,
        message.seconds,
        message.is_overdue,
    )


def _call_to_message(call: CallbackCall) -> pb.CallbackCall:
    return pb.CallbackCall(
        state=call.state,
        learning_rate=call.learning_rate,
        kind=str(call.moment.kind),
        number=call.moment.number,
        logs=call.moment.logs,
        num_epochs=call.num_epochs,
    )


def _call_from_message(message: pb.CallbackCall) -> CallbackCall:
    try:
        kind = MomentKind(message.kind)
    except ValueError as error:
        raise MessageError(f"expected a kind of moment, found {message.kind!r}") from error
    rate = message.learning_rate if message.HasField("learning_rate") else None
    moment = Moment(kind, message.number, dict(message.logs))
    return CallbackCall(message.state, rate, moment, message.num_epochs)


def _result_to_message(result: CallbackResult) -> pb.CallbackResult:
    return pb.CallbackResult(
        state=result.state, learning_rate=result.learning_rate, stop=result.stop
    )


def _result_from_message(message: pb.CallbackResult) -> CallbackResult:
    rate = message.learning_rate if message.HasField("learning_rate") else None
    return CallbackResult(message.state, rate, message.stop)


def _task_to_message(task: Task) -> pb.Task:
    return pb.Task(
        id=task.id,
        kind=_KINDS[task.kind],
        shard=pb.Shard(name=task.shard.name, start=task.shard.start, end=task.shard.end),
        epoch=task.epoch,
        evaluation_id=task.evaluation_id,
    )


def _task_from_message(message: pb.Task) -> Task:
    kind = _KINDS_BACK.get(message.kind)
    if kind is None:
        raise MessageError(f"expected a kind of task, found number {message.kind}")
    shard = Shard(message.shard.name, message.shard.start, message.shard.end)
    return Task(message.id, kind, shard, message.epoch, message.evaluation_id)


def report_to_message(report: TaskReport) -> pb.TaskReport:
    """Pack the end of a lease."""
    return pb.TaskReport(
        task_id=report.task_id,
        lease=report.lease,
        outcome=_OUTCOMES[report.outcome],
        message=report.message,
        fatal=report.fatal,
        is_certain=report.is_certain,
        num_records=report.num_records,
        loss_sum=report.loss_sum,
        model_version=report.model_version,
        staleness_sum=report.staleness_sum,
        staleness_max=report.staleness_max,
        staleness_histogram=report.staleness_histogram,
        num_recomputed=report.num_recomputed,
        num_minibatches=report.num_minibatches,
        end_index=report.end_index,
        num_examples=report.num_examples,
        num_missing=report.num_missing,
        num_unreadable=report.num_unreadable,
        num_late=report.num_late,
        time=report.time,
        skipped=report.skipped,
        skipped_examples=report.skipped_examples,
        windows=[_measured_to_message(window) for window in report.windows],
        metric_states=states_to_message(report.metric_states),
        metrics=report.metrics,
        callbacks=None if report.callbacks is None else _result_to_message(report.callbacks),
        num_measured=report.num_measured,
        may_pass=report.may_pass,
    )


def report_from_message(message: pb.TaskReport) -> TaskReport:
    """Unpack the end of a lease."""
    outcome = _OUTCOMES_BACK.get(message.outcome)
    if outcome is None:
        raise MessageError(f"expected an outcome, found number {message.outcome}")
    return TaskReport(
        task_id=message.task_id,
        lease=message.lease,
        outcome=outcome,
        message=message.message,
        fatal=message.fatal,
        is_certain=message.is_certain,
        num_records=message.num_records,
        loss_sum=message.loss_sum,
        model_version=message.model_version,
        staleness_sum=message.staleness_sum,
        staleness_max=message.staleness_max,
        staleness_histogram=tuple(message.staleness_histogram),
        num_recomputed=message.num_recomputed,
        num_minibatches=message.num_minibatches,
        end_index=message.end_index,
        num_examples=message.num_examples,
        num_missing=message.num_missing,
        num_unreadable=message.num_unreadable,
        num_late=message.num_late,
        time=message.time,
        windows=tuple(_measured_from_message(window) for window in message.windows),
        skipped=tuple(message.skipped),
        skipped_examples=tuple(message.skipped_examples),
        metric_states=states_from_message(message.metric_states),
        metrics=dict(message.metrics),
        callbacks=_result_from_message(message.callbacks)
        if message.HasField("callbacks")
        else None,
        num_measured=message.num_measured,
        may_pass=message.may_pass,
    )


def _measured_to_message(window: MeasuredWindow) -> pb.MeasuredWindow:
    return pb.MeasuredWindow(
        number=window.number,
        num_messages=window.num_messages,
        num_trained=window.num_trained,
        loss_sum=window.loss_sum,
        num_measured=window.num_measured,
        metric_states=states_to_message(window.metric_states),
    )


def _measured_from_message(message: pb.MeasuredWindow) -> MeasuredWindow:
    return MeasuredWindow(
        message.number,
        message.num_messages,
        message.num_trained,
        message.loss_sum,
        message.num_measured,
        states_from_message(message.metric_states),
    )


def route_to_message(route: PsRoute) -> pb.PsRoute:
    """Pack where the ps replicas are."""
    return pb.PsRoute(generation=route.generation, addresses=route.addresses)


def route_from_message(message: pb.PsRoute) -> PsRoute:
    """Unpack where the ps replicas are."""
    return PsRoute(message.generation, tuple(message.addresses))


def usage_to_message(usage: Usage) -> pb.Usage:
    """Pack what a process did with its time."""
    return pb.Usage(
        began=usage.began,
        label=str(usage.label),
        label_seconds=usage.label_seconds,
        cpu_seconds=usage.cpu_seconds,
        resident_bytes=usage.resident_bytes,
        bytes_sent=usage.bytes_sent,
        bytes_received=usage.bytes_received,
        host=usage.host,
        swapped_bytes=usage.swapped_bytes,
        core_wait_seconds=usage.core_wait_seconds,
        wants_checkpoint=usage.wants_checkpoint,
        hot_keys=[
            pb.HotKeys(
                table=hot.table,
                num_ids=hot.num_ids,
                keys=[key for key, _ in hot.keys],
                counts=[count for _, count in hot.keys],
            )
            for hot in usage.hot_keys
        ],
    )


def usage_from_message(message: pb.Usage) -> Usage:
    """Unpack what a process did with its time."""
    try:
        label = Label(message.label)
    except ValueError as error:
        raise MessageError(f"expected a label of {list(map(str, Label))}: {error}") from error
    return Usage(
        began=message.began,
        label=label,
        label_seconds=dict(message.label_seconds),
        cpu_seconds=message.cpu_seconds,
        resident_bytes=message.resident_bytes,
        bytes_sent=message.bytes_sent,
        bytes_received=message.bytes_received,
        host=message.host,
        swapped_bytes=message.swapped_bytes,
        core_wait_seconds=message.core_wait_seconds,
        wants_checkpoint=message.wants_checkpoint,
        hot_keys=tuple(
            HotKeys(hot.table, hot.num_ids, tuple(zip(hot.keys, hot.counts, strict=False)))
            for hot in message.hot_keys
        ),
    )


def progress_to_message(progress: Progress) -> pb.Progress:
    """Pack what a worker says of itself."""
    return pb.Progress(
        num_records=progress.num_records,
        loss_sum=progress.loss_sum,
        num_minibatches=progress.num_minibatches,
        model_version=progress.model_version,
        stage_seconds=progress.stage_seconds,
        learning_rate=progress.learning_rate,
    )


def progress_from_message(message: pb.Progress) -> Progress:
    """Unpack what a worker says of itself."""
    return Progress(
        num_records=message.num_records,
        loss_sum=message.loss_sum,
        num_minibatches=message.num_minibatches,
        model_version=message.model_version,
        stage_seconds=dict(message.stage_seconds),
        learning_rate=message.learning_rate if message.HasField("learning_rate") else None,
    )


def status_to_message(status: JobStatus) -> pb.JobStatus:
    """Pack a picture of the job."""
    return pb.JobStatus(
        job_name=status.job_name,
        status=status.status,
        message=status.message,
        seconds=status.seconds,
        epoch=status.epoch,
        num_epochs=status.num_epochs,
        tasks_todo=status.tasks_todo,
        tasks_doing=status.tasks_doing,
        tasks_done=status.tasks_done,
        records_done=status.records_done,
        records_total=status.records_total,
        records_per_second=status.records_per_second,
        loss=status.loss,
        model_version=status.model_version,
        mean_staleness=status.mean_staleness,
        max_staleness=status.max_staleness,
        metrics=status.metrics,
        num_workers_alive=status.num_workers_alive,
        num_ps_alive=status.num_ps_alive,
        ledger=[
            pb.EpochLedger(
                epoch=line.epoch,
                records=line.records,
                trained_once=line.trained_once,
                repeated=line.repeated,
                lost=line.lost,
                examples=line.examples,
            )
            for line in status.ledger
        ],
        skipped=status.skipped,
        checkpoints=status.checkpoints,
        output=status.output,
        recoveries=[pb.Recovery(**asdict(recovery)) for recovery in status.recoveries],
        staleness_histogram=status.staleness_histogram,
        num_recomputed=status.num_recomputed,
        epoch_loss=status.epoch_loss,
        train_metrics=status.train_metrics,
        recent_train_metrics=status.recent_train_metrics,
        train_metrics_epoch=status.train_metrics_epoch,
        train_metrics_records=status.train_metrics_records,
        evaluated_records=status.evaluated_records,
        counters=status.counters,
        data_check=status.data_check,
        best=None if status.best is None else pb.BestEvaluation(**asdict(status.best)),
        overfitting=status.overfitting,
        members=[member_to_message(member) for member in status.members],
        partitions=[pb.Partition(**asdict(partition)) for partition in status.partitions],
        num_unreadable=status.num_unreadable,
        num_late=status.num_late,
        watermark=status.watermark,
        windows=[pb.Window(**asdict(window)) for window in status.windows],
    )


def member_to_message(member: MemberStatus) -> pb.Member:
    """Pack a process of the job."""
    usage = None if member.usage is None else usage_to_message(member.usage)
    of_message = {"role": role_to_message(member.role), "usage": usage}
    return pb.Member(**(asdict(member) | of_message))


def _member_from_message(message: pb.Member) -> MemberStatus:
    return MemberStatus(
        role=role_from_message(message.role),
        index=message.index,
        state=message.state,
        pid=message.pid,
        address=message.address,
        seconds=message.seconds,
        silent_seconds=message.silent_seconds,
        tasks_done=message.tasks_done,
        usage=usage_from_message(message.usage) if message.HasField("usage") else None,
    )


def status_to_json(status: JobStatus) -> str:
    """Return a picture of the job as text, for a file that is read when the master is gone."""
    return json_format.MessageToJson(status_to_message(status), preserving_proto_field_name=True)


def status_from_json(text: str) -> JobStatus:
    """Read what `status_to_json` wrote.

    Raises:
        MessageError: It is something else.
    """
    try:
        message = json_format.Parse(text, pb.JobStatus(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise MessageError(f"expected a picture of a job as JSON: {error}") from error
    return status_from_message(message)


def _best_from_message(message: pb.BestEvaluation) -> BestEvaluation:
    return BestEvaluation(
        metric=message.metric,
        mode=message.mode,
        value=message.value,
        version=message.version,
        num_epochs=message.num_epochs,
        checkpoint=message.checkpoint if message.HasField("checkpoint") else None,
    )


def status_from_message(message: pb.JobStatus) -> JobStatus:
    """Unpack a picture of the job."""
    return JobStatus(
        job_name=message.job_name,
        status=message.status,
        message=message.message,
        seconds=message.seconds,
        epoch=message.epoch,
        num_epochs=message.num_epochs,
        tasks_todo=message.tasks_todo,
        tasks_doing=message.tasks_doing,
        tasks_done=message.tasks_done,
        records_done=message.records_done,
        records_total=message.records_total,
        records_per_second=message.records_per_second,
        loss=message.loss if message.HasField("loss") else None,
        model_version=message.model_version,
        mean_staleness=message.mean_staleness,
        max_staleness=message.max_staleness,
        metrics=dict(message.metrics),
        num_workers_alive=message.num_workers_alive,
        num_ps_alive=message.num_ps_alive,
        ledger=tuple(
            EpochLedger(
                epoch=line.epoch,
                records=line.records,
                trained_once=line.trained_once,
                repeated=line.repeated,
                lost=line.lost,
                examples=line.examples,
            )
            for line in message.ledger
        ),
        skipped=tuple(message.skipped),
        checkpoints=tuple(message.checkpoints),
        output=message.output,
        recoveries=tuple(
            Recovery(
                replica=recovery.replica,
                version=recovery.version,
                tasks=recovery.tasks,
                minibatches=recovery.minibatches,
                records=recovery.records,
                is_replayed=recovery.is_replayed,
                seconds=recovery.seconds,
                is_handed_over=recovery.is_handed_over,
            )
            for recovery in message.recoveries
        ),
        staleness_histogram=tuple(message.staleness_histogram),
        num_recomputed=message.num_recomputed,
        epoch_loss=message.epoch_loss if message.HasField("epoch_loss") else None,
        train_metrics=dict(message.train_metrics),
        recent_train_metrics=dict(message.recent_train_metrics),
        train_metrics_epoch=message.train_metrics_epoch,
        train_metrics_records=message.train_metrics_records,
        evaluated_records=message.evaluated_records,
        counters=dict(message.counters),
        data_check=tuple(message.data_check),
        best=_best_from_message(message.best) if message.HasField("best") else None,
        overfitting=message.overfitting,
        members=tuple(_member_from_message(member) for member in message.members),
        partitions=tuple(
            PartitionStatus(each.name, each.position, each.end, each.lag, each.skipped, each.time)
            for each in message.partitions
        ),
        num_unreadable=message.num_unreadable,
        num_late=message.num_late,
        watermark=message.watermark,
        windows=tuple(
            WindowStatus(
                start=window.start,
                seconds=window.seconds,
                num_messages=window.num_messages,
                num_measured=window.num_measured,
                loss=window.loss if window.HasField("loss") else None,
                metrics=dict(window.metrics),
                is_over=window.is_over,
            )
            for window in message.windows
        ),
    )
