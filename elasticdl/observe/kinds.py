"""The schema of the event log: every kind of event, its fields and their units, and who writes it.

`docs/events.md` is made from this module (`python -m scripts.event_kinds`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar

from elasticdl import registry
from elasticdl.observe.kind import EACH, SUPERVISOR, WORKER, Kind, dataclass_fields

Process = Annotated[str, 'name of a process, such as "worker 3" or "ps replica 0"']
TaskId = Annotated[int, "id of the task"]
Version = Annotated[int, "model version of the checkpoint"]

# --- the event log itself ------------------------------------------------------------------------


class Opened(Kind):
    """A process begins to write to its log. Totals of the process at that index begin anew."""

    event: ClassVar[str] = "opened"
    writer: ClassVar[str] = EACH
    schema: Annotated[int, "version of this schema"]
    pid: Annotated[int, "process id on its machine"]


class EventsLost(Kind):
    """The log could be written to again."""

    event: ClassVar[str] = "events lost"
    writer: ClassVar[str] = EACH
    num_lost: Annotated[int, "events that could not be written before"]


# --- what comes with each heartbeat --------------------------------------------------------------


class WorkerProgress(Kind):
    """A worker reports its progress."""

    event: ClassVar[str] = "progress"
    writer: ClassVar[str] = WORKER
    is_beat: ClassVar[bool] = True
    num_records: Annotated[int, "examples trained since the process began"]
    loss_sum: Annotated[float, "sum of the loss over these examples"]
    num_minibatches: Annotated[int, "minibatches trained since the process began"]
    model_version: Annotated[int, "updates that the parameters had"]
    stage_seconds: Annotated[Mapping[str, float], "seconds in each stage since the process began"]
    learning_rate: Annotated[float | None, "of its last step"] = None
    waits_for: Annotated[str, "the data that it cannot read for a while, and why"] = ""


class FeedPath(Kind):
    """A worker says how its records become minibatches, and the reason."""

    event: ClassVar[str] = "feed"
    writer: ClassVar[str] = WORKER


class ProcessUsage(Kind):
    """A process reports the use of its time and of the machine, since it began."""

    event: ClassVar[str] = "usage"
    writer: ClassVar[str] = EACH
    is_beat: ClassVar[bool] = True
    began: Annotated[float, "when the process began, seconds since 1970; tells it from others"]
    label: Annotated[str, "what it is at now"]
    label_seconds: Annotated[
        Mapping[str, float], "seconds under each label; together the time since it began"
    ]
    cpu_seconds: Annotated[float, "processor seconds, user and system, of all its threads"]
    resident_bytes: Annotated[int, "bytes of memory that it holds now"]
    bytes_sent: Annotated[int, "bytes sent on the tensor plane"]
    bytes_received: Annotated[int, "bytes received on the tensor plane"]
    host: Annotated[str, "its machine, or its pod"] = ""
    core_wait_seconds: Annotated[
        float, "seconds that its threads waited for a core, all together, of those that are alive"
    ] = 0.0


class JobPicture(Kind):
    """The master reports the state of the job."""

    event: ClassVar[str] = "picture"
    is_beat: ClassVar[bool] = True
    job_name: Annotated[str, "name of the job"]
    status: Annotated[str, "pending, running, evaluating, ..., finished or failed"]
    epoch: Annotated[int, "epoch, from 0"]
    num_epochs: Annotated[int, "epochs that the job has"]
    tasks_todo: Annotated[int, "tasks that wait to be leased, over all epochs"]
    tasks_doing: Annotated[int, "tasks that are leased"]
    tasks_done: Annotated[int, "tasks that are done"]
    records_done: Annotated[int, "over all epochs, as workers report progress"]
    records_total: Annotated[int, "over all epochs"]
    records_per_second: Annotated[float, "of the last seconds"]
    loss: Annotated[float | None, "mean over recent records"]
    model_version: Annotated[int, "updates that the parameters had"]
    mean_staleness: Annotated[float, "versions between a pull and its gradient"]
    max_staleness: Annotated[int, "the same, at most"]
    staleness: Annotated[Sequence[int], "updates that were 0, 1, 2 to 3, 4 to 7, ... versions late"]
    workers: Annotated[int, "workers that are alive"]
    ps_replicas: Annotated[int, "ps replicas that are alive"]
    task_map: Annotated[
        str,
        "the epoch's tasks in equal parts, in order of the data: of each part how many tenths are "
        "done, from 0 to 9, and * when all are",
    ] = ""
    doing: Annotated[
        Sequence[tuple[int, int]],
        "of tasks of the epoch that are leased: which of the parts, worker",
    ] = ()
    lag: Annotated[int | None, "positions of a stream that are not trained"] = None
    watermark: Annotated[float, "of a stream, in seconds since 1970; 0: not known"] = 0.0
    num_late: Annotated[int, "records of a stream that came late"] = 0


class ParameterTables(Kind):
    """The ps replicas report what they hold."""

    event: ClassVar[str] = "tables"
    is_beat: ClassVar[bool] = True
    names: Annotated[Sequence[str], "of the embedding tables"]
    rows: Annotated[Sequence[int], "of each table, over all replicas"]
    num_bytes: Annotated[Sequence[int], "of each table: rows, optimizer slots and index"]
    replica_rows: Annotated[Sequence[int], "of each replica, over all tables"]
    replica_bytes: Annotated[Sequence[int], "that each replica holds"]
    pulled: Annotated[
        Sequence[int],
        "of each table: keys that training asked for, each once a minibatch, since the ps replicas "
        "began",
    ] = ()
    found: Annotated[Sequence[int], "of each table: how many of these keys had a row"] = ()
    hot_keys: Annotated[
        Sequence[Sequence[tuple[str, float]]],
        "of each table: the most frequent keys and their shares of the ids, from a sample of the "
        "minibatches since the master began",
    ] = ()
    replica_pulled: Annotated[Sequence[int], "of each replica: keys as in `pulled`"] = ()
    rows_on_disk: Annotated[
        Sequence[int], "of each table: rows that are on `--ps_disk` and not in memory"
    ] = ()
    disk_reads: Annotated[
        Sequence[int], "of each table: rows that were read from there, since the ps replicas began"
    ] = ()


class EventLoop(Kind):
    """The master's event loop was late since the last report; it answered no one meanwhile."""

    event: ClassVar[str] = "event loop"
    is_beat: ClassVar[bool] = True
    late_seconds: Annotated[float, "seconds, at most, also because the machine was busy"]
    held_seconds: Annotated[float, "seconds, at most, in which the master itself was busy"]


class PageServed(Kind):
    """The master serves the job's page, or says why it cannot."""

    event: ClassVar[str] = "page"
    address: Annotated[str, "of the page, without its token; empty if it is not served"]


# --- the job -------------------------------------------------------------------------------------


class PhaseBegan(Kind):
    """The job goes on to its next phase."""

    event: ClassVar[str] = "phase"
    phase: Annotated[str, "training, predicting, evaluating, exporting, checkpointing or auditing"]


class DataChecked(Kind):
    """A worker has looked at a sample of the data, before the first record."""

    event: ClassVar[str] = "data check"
    lines: Annotated[Sequence[str], "what it found"]


class JobEnded(Kind):
    """The job has ended."""

    event: ClassVar[str] = "ended"
    phase: Annotated[str, "finished or failed"]


class JobStopping(Kind):
    """The job will fail, once its last checkpoint is written."""

    event: ClassVar[str] = "stopping"


class Resumed(Kind):
    """A master goes on with the job of one that was lost or paused."""

    event: ClassVar[str] = "resumed"


class Paused(Kind):
    """The master leaves the job as it is; another one can go on."""

    event: ClassVar[str] = "paused"


class MasterLate(Kind):
    """The master stood still, so nobody is given up for silence in that time."""

    event: ClassVar[str] = "late"
    seconds: Annotated[float, "seconds that its clock tick came late"]


class LoopHeld(Kind):
    """The master was busy with one thing for too long, and answered nobody meanwhile."""

    event: ClassVar[str] = "loop held"
    seconds: Annotated[float, "longest hold since the last such event"]
    num_holds: Annotated[int, "holds above the limit since the last such event"]


class HeartbeatInterval(Kind):
    """Processes are told to send their heartbeats at another interval, for their number."""

    event: ClassVar[str] = "heartbeat interval"
    seconds: Annotated[float, "seconds between two heartbeats of a process"]
    num_members: Annotated[int, "processes of the job"]


class JournalNews(Kind):
    """The job's journal is away, or is back."""

    event: ClassVar[str] = "journal"


class TrackersAwaited(Kind):
    """The end waits for servers, or a disk, to take the last numbers of the job."""

    event: ClassVar[str] = "trackers awaited"
    flags: Annotated[tuple[str, ...], "those that ask for them"]


class StreamNews(Kind):
    """The source of the stream that is trained on is away, or is back."""

    event: ClassVar[str] = "stream"


# --- processes -----------------------------------------------------------------------------------


class Registered(Kind):
    """A process is ready to take part."""

    event: ClassVar[str] = "registered"
    process: Process
    pid: Annotated[int, "process id on its machine"]
    address: Annotated[str, "HOST:PORT of a ps replica; empty for a worker"] = ""


class ProcessPending(Kind):
    """A process waits to be started by its launcher."""

    event: ClassVar[str] = "pending"
    process: Process
    why: Annotated[str, "what it waits for, in the launcher's words"]


class ProcessRuns(Kind):
    """A process that was pending runs."""

    event: ClassVar[str] = "runs"
    process: Process


class ProcessStopping(Kind):
    """A worker gets no more tasks, because the job goes on with fewer."""

    event: ClassVar[str] = "scaled down"
    process: Process


class ProcessLeaving(Kind):
    """A process was asked to end, by others than the master."""

    event: ClassVar[str] = "leaving"
    process: Process


class ProcessLeft(Kind):
    """A process has ended, as was expected."""

    event: ClassVar[str] = "left"
    process: Process
    reason: Annotated[str, "finished, failed, killed, preempted, out of memory, node lost, unknown"]


class ProcessLost(Kind):
    """A process has ended, or fell silent, and was still needed."""

    event: ClassVar[str] = "lost"
    process: Process
    reason: Annotated[str, "finished, failed, killed, preempted, out of memory, node lost, unknown"]


class NotReplaced(Kind):
    """A process that was lost is not started again."""

    event: ClassVar[str] = "not replaced"


class PsHandedOver(Kind):
    """A process that was asked to end has written what it alone held, for its successor."""

    event: ClassVar[str] = "handed over"
    process: Process
    version: Annotated[int, "updates that it had applied"]


class PsRecovered(Kind):
    """A ps replica that was lost is back."""

    event: ClassVar[str] = "ps recovered"
    process: Process
    replica: Annotated[int, "index of the replica"]
    version: Annotated[int, "model version that it was restored to; 0 if it began empty"]
    tasks: Annotated[int, "tasks that it lacked"]
    minibatches: Annotated[int, "minibatches that it lacked"]
    records: Annotated[int, "records in these"]
    is_replayed: Annotated[bool, "whether it is given them again"]
    seconds: Annotated[float, "seconds from its loss until workers were told where it is"]
    is_handed_over: Annotated[bool, "whether it has all, from its predecessor"] = False
    lost: Annotated[
        Sequence[tuple[int, int, int]],
        "with `--ps_recovery=latest`: task, first and end of the minibatches that it lost",
    ] = ()


class PsMoveWanted(Kind):
    """The model is to move to another number of ps replicas."""

    event: ClassVar[str] = "ps move wanted"
    replicas: Annotated[int, "how many there are to be"]


class PsMoved(Kind):
    """The model has moved to another number of ps replicas."""

    event: ClassVar[str] = "ps moved"
    replicas: Annotated[int, "how many there are now"]
    layout: Annotated[int, "number of the layout"]


class PsNotMoved(Kind):
    """The model could not move to another number of ps replicas."""

    event: ClassVar[str] = "ps not moved"
    reason: Annotated[str, "why"]


# --- tasks and training --------------------------------------------------------------------------


class LeftToStragglers(Kind):
    """The last tasks of the slowest workers are not waited for."""

    event: ClassVar[str] = "stragglers"
    tasks: Annotated[Sequence[int], "ids of the tasks"]


class Requeued(Kind):
    """Tasks of a process that was lost go to others."""

    event: ClassVar[str] = "requeued"
    process: Process
    tasks: Annotated[Sequence[int], "ids of the tasks"]


class TaskFailed(Kind):
    """A task failed and is tried again."""

    event: ClassVar[str] = "task failed"
    task: TaskId


class ResultsWait(Kind):
    """Results cannot be written where they belong; the job waits and tries again."""

    event: ClassVar[str] = "results wait"
    task: TaskId
    seconds: Annotated[float, "seconds until the next try"]


class TaskSetAside(Kind):
    """A task failed too often and is left out; the job will fail."""

    event: ClassVar[str] = "task set aside"
    task: TaskId


OF_TASKS = (TaskFailed, TaskSetAside)
"""The events that tell why a task failed."""


class Slow(Kind):
    """A worker is at one stage for long."""

    event: ClassVar[str] = "slow"
    process: Process
    task_id: TaskId
    lease: Annotated[int, "number of the lease of the task"]
    minibatch: Annotated[int, "which minibatch of the task; -1: none in particular"]
    stage: Annotated[str, "feed, ids, pull, compute, push, ..."]
    seconds: Annotated[float, "seconds that it has been there"]
    is_overdue: Annotated[bool, "whether the worker ends itself for that"]


class TrainingMetricsMeasured(Kind):
    """Loss and metrics over training records."""

    event: ClassVar[str] = "training metrics"
    epoch: Annotated[int, "epoch, from 0"]
    loss: Annotated[float | None, "mean over the records of the epoch so far"]
    recent_loss: Annotated[float | None, "mean over recent records"]
    metrics: Annotated[Mapping[str, float], "of the epoch so far, by name"]
    recent_metrics: Annotated[Mapping[str, float], "of recent records, by name"]
    num_records: Annotated[int, "records that `metrics` are of"]


class TrainingMetricsFailed(Kind):
    """Metrics of training could not be computed."""

    event: ClassVar[str] = "training metrics failed"


class Evaluated(Kind):
    """An evaluation is complete."""

    event: ClassVar[str] = "evaluation"
    metrics: Annotated[Mapping[str, float], "by name"]


class BestEvaluation(Kind):
    """An evaluation is the best so far, by the metric of `--keep_best`; its checkpoint is kept."""

    event: ClassVar[str] = "best evaluation"
    metric: Annotated[str, "name"]
    mode: Annotated[str, "max or min"]
    value: Annotated[float, "of the metric"]
    version: Annotated[int, "model version that was evaluated"]


class BegunWith(Kind):
    """A job begins with a checkpoint, `--checkpoint_dir_for_init`."""

    event: ClassVar[str] = "begun with checkpoint"
    version: Version
    learning_rate: Annotated[float | None, "that a callback had set, and training goes on with"]


class LearningRateSet(Kind):
    """A callback sets the learning rate."""

    event: ClassVar[str] = "learning rate"
    learning_rate: Annotated[float, "from now on"]


class TrainingStopped(Kind):
    """A callback stops training."""

    event: ClassVar[str] = "training stopped"


# --- checkpoints ---------------------------------------------------------------------------------


class CheckpointWritten(Kind):
    """A checkpoint is whole."""

    event: ClassVar[str] = "checkpoint"
    version: Version
    is_best: Annotated[bool, "whether it is that of the best evaluation so far"] = False


class CheckpointFailed(Kind):
    """A checkpoint could not be written."""

    event: ClassVar[str] = "checkpoint failed"
    version: Version


class CheckpointUnsound(Kind):
    """A ps replica cannot be restored from a checkpoint, and goes back to an older one."""

    event: ClassVar[str] = "checkpoint unsound"
    replica: Annotated[int, "index of the replica"]
    problem: Annotated[str, "what is wrong with the checkpoint"]


class RowsExpired(Kind):
    """Rows of embedding tables have come to their end."""

    event: ClassVar[str] = "expired"


# --- the root of a local job ---------------------------------------------------------------------


class Warned(Kind):
    """Something to know of how the job was started."""

    event: ClassVar[str] = "warning"
    writer: ClassVar[str] = SUPERVISOR


class MasterLost(Kind):
    """The master was lost, and is started again."""

    event: ClassVar[str] = "master lost"
    writer: ClassVar[str] = SUPERVISOR


class LeftBehind(Kind):
    """Processes cannot be ended."""

    event: ClassVar[str] = "left behind"
    writer: ClassVar[str] = SUPERVISOR


_OF_THE_CORE = {kind.event: kind for kind in Kind.__subclasses__()}


@cache
def all_kinds() -> Mapping[str, type[Kind]]:
    """Return every kind, also those of packages, by the name that is in `event`."""
    return types.MappingProxyType(_OF_THE_CORE | registry.brought("kinds"))


def typed(event: Mapping[str, Any]) -> Kind | None:
    """Return an event as its kind; None if this schema does not have the kind.

    Unknown fields are left out.

    Raises:
        TypeError: A field is missing.
    """
    kind = all_kinds().get(event["event"])
    if kind is None:
        return None
    names = {one.name for one in dataclass_fields(kind)}
    return kind(**{name: value for name, value in event.items() if name in names})
