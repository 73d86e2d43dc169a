"""The decision about a process that has ended, the same for all launchers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticdl.job import Role
from elasticdl.launchers.base import ExitReason
from elasticdl.runtime.process import OWN_FAILURE_EXIT_CODE, TIMED_OUT_EXIT_CODE


class Decision(Enum):
    """The master's reaction to a process that ended."""

    RELAUNCH = "relaunch"
    GIVE_UP = "give up"  # go on with those that are left
    FAIL_JOB = "fail the job"


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process ended while the job needed it. `code` is its exit code, or minus the signal."""

    role: Role
    reason: ExitReason
    code: int | None
    was_ready: bool  # ps replicas and model servers: it was part of the job
    tasks_done: int  # by this process
    is_of_task: bool = False  # it died of a task that it held; see `may_be_of_task`
    is_of_look: bool = False  # it died of the look at the data, which one worker takes
    was_watched: bool = True  # False: it was gone when a restarted master looked for it


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of earlier ends, and the tries that are left."""

    failures: int  # of processes, over the job
    max_relaunches: int
    job_tasks_done: int
    same_message_before: bool  # another process failed with the very same last words
    others_present: int  # processes of the role that run or start
    deaths_of_tasks: int = 0  # of workers that died of a task, over the job


@dataclass(frozen=True, slots=True)
class RelaunchVerdict:
    """A decision. `is_failure` counts towards `--max_relaunches`."""

    decision: Decision
    is_failure: bool
    why: str = ""


_CRASHES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}


def crash(code: int | None) -> str:
    """Return the signal by which a process crashed; "" if it did not.

    The code is minus the signal, or 128 and the signal, as shells and containers say it.
    """
    return "" if code is None else _CRASHES.get(-code) or _CRASHES.get(code - 128) or ""


def may_be_of_task(reason: ExitReason, code: int | None) -> bool:
    """Whether a worker that ended so may have died of a task that it held.

    It may have if it crashed, took too much memory, or was ended by the user's code (`os._exit`).
    It may have, too, if it ended itself because that code did not return. It did not if it was
    killed from outside, lost its machine, or failed for a reason of its own.
    """
    if reason is ExitReason.OUT_OF_MEMORY or crash(code):
        return True
    is_own = reason in (ExitReason.FAILED, ExitReason.FINISHED)
    return is_own and code != OWN_FAILURE_EXIT_CODE


def decide(ended: EndedProcess, counts: Counts) -> RelaunchVerdict:
    """Decide whether a process is replaced.

    A process that was killed from outside (a preempted machine, `kill -9`) costs no try, if it had
    done a task before (a ps replica: had served workers). So a job survives any number of
    preemptions, but not a loop of processes that are killed before they get anywhere. A process
    that was asked to end costs no try: the request is about the place where it ran. A process that
    ended together with the master costs no try either, as when the whole job is started again. All
    else counts as a failure of ours or of the user's.

    A worker that died of a task costs no try, because the task pays with one of its own tries. This
    rule holds while the job has done more tasks than workers died of tasks. Otherwise workers that
    die of every task would go on for ever. A worker that died of the look at the data before the
    first task costs no try, because no other worker looks.
    """
    if ended.is_of_look:
        return RelaunchVerdict(Decision.RELAUNCH, False)
    if ended.is_of_task and counts.deaths_of_tasks < counts.job_tasks_done:
        return RelaunchVerdict(Decision.RELAUNCH, False)
    if not _is_failure(ended):
        return RelaunchVerdict(Decision.RELAUNCH, False)
    # Two processes failed with the same words, and no task is done: probably the user's code has a
    # mistake, and more tries would only repeat it.
    is_own_fault = ended.reason is ExitReason.FAILED
    if is_own_fault and counts.same_message_before and counts.job_tasks_done == 0:
        return RelaunchVerdict(
            Decision.FAIL_JOB, True, "another one had failed alike, and no task is done"
        )
    if counts.failures < counts.max_relaunches:
        return RelaunchVerdict(Decision.RELAUNCH, True)
    spent = f"--max_relaunches={counts.max_relaunches} are spent"
    # The job goes on with fewer workers. A replica has a part of the model that nobody else has.
    if ended.role is not Role.WORKER:
        return RelaunchVerdict(Decision.FAIL_JOB, True, spent)
    if counts.others_present:
        return RelaunchVerdict(Decision.GIVE_UP, True, spent)
    return RelaunchVerdict(Decision.FAIL_JOB, True, f"{spent}, and no other worker is left")


def describe(reason: ExitReason, code: int | None) -> str:
    """Say how a process ended."""
    if name := crash(code):
        return f"crashed ({name})"
    if code == TIMED_OUT_EXIT_CODE:
        return "timed out"
    match reason:
        case ExitReason.FINISHED:
            return "ended with exit code 0"
        case ExitReason.FAILED if code is None:
            return "could not be started"
        case ExitReason.FAILED:
            return f"failed with exit code {code}"
        case ExitReason.KILLED if code is not None and code < 0:
            return f"was killed by signal {-code}"
        case ExitReason.KILLED:
            return "was killed"
        case ExitReason.PREEMPTED:
            return "was asked to end"
        case ExitReason.OUT_OF_MEMORY:
            return "was killed for want of memory"
        case ExitReason.NODE_LOST:
            return "was lost with its machine"
        case _:
            return "was lost"


def _is_failure(ended: EndedProcess) -> bool:
    if not ended.was_watched or ended.reason is ExitReason.PREEMPTED:
        return False
    from_outside = (
        ExitReason.FINISHED,
        ExitReason.KILLED,
        ExitReason.NODE_LOST,
        ExitReason.UNKNOWN,
    )
    if ended.reason not in from_outside or crash(ended.code):
        return True
    # A process that got anywhere was killed by its machine, not by its own fault.
    return not (ended.tasks_done if ended.role is Role.WORKER else ended.was_ready)
