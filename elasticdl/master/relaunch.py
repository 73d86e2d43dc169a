"""What to do when a process has ended: one decision for all launchers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticdl.job import Role
from elasticdl.launchers.base import ExitReason


class Decision(Enum):
    """What the master does about a process that ended."""

    RELAUNCH = "relaunch"
    GIVE_UP = "give up"  # go on with those that are left
    FAIL_JOB = "fail the job"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process ended while the job needed it. `code` is its exit code, or minus the signal."""

    role: Role
    reason: ExitReason
    code: int | None
    was_ready: bool  # ps replicas: it was part of the job
    tasks_done: int  # by this process


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened before, and what is left."""

    failures: int  # of processes, over the job
    max_relaunches: int
    job_tasks_done: int
    same_message_before: bool  # another process failed with the very same last words
    others_present: int  # processes of the role that run or start


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision. `is_failure` counts towards `--max_relaunches`."""

    decision: Decision
    is_failure: bool
    why: str = ""


_CRASHES = {-4: "SIGILL", -6: "SIGABRT", -7: "SIGBUS", -8: "SIGFPE", -11: "SIGSEGV"}


def decide(ended: Ended, counts: Counts) -> Verdict:
    """Decide whether a process is replaced.

    Being killed from outside (a preempted machine, `kill -9`) costs nothing, if the process had
    done a task before (a ps replica: had served workers); so a job survives any number of
    preemptions, but not a loop of processes that are killed before they get anywhere. All else
    counts as a failure of ours or of the user's.
    """
    if not _is_failure(ended):
        return Verdict(Decision.RELAUNCH, False)
    is_own_fault = ended.reason is ExitReason.FAILED
    if is_own_fault and counts.same_message_before and counts.job_tasks_done == 0:
        return Verdict(Decision.FAIL_JOB, True, "another one had failed alike, and no task is done")
    if counts.failures < counts.max_relaunches:
        return Verdict(Decision.RELAUNCH, True)
    spent = f"--max_relaunches={counts.max_relaunches} are spent"
    if ended.role is Role.PS:
        return Verdict(Decision.FAIL_JOB, True, spent)
    if counts.others_present:
        return Verdict(Decision.GIVE_UP, True, spent)
    return Verdict(Decision.FAIL_JOB, True, f"{spent}, and no other worker is left")


def describe(reason: ExitReason, code: int | None) -> str:
    """Say how a process ended."""
    if code in _CRASHES:
        return f"crashed ({_CRASHES[code]})"
    match reason:
        case ExitReason.FINISHED:
            return "ended with exit code 0"
        case ExitReason.FAILED:
            return f"failed with exit code {code}"
        case ExitReason.KILLED if code is not None and code < 0:
            return f"was killed by signal {-code}"
        case ExitReason.KILLED:
            return "was asked to end"
        case ExitReason.OUT_OF_MEMORY:
            return "was killed for want of memory"
        case ExitReason.NODE_LOST:
            return "was lost with its machine"
        case _:
            return "was lost"


def _is_failure(ended: Ended) -> bool:
    from_outside = (
        ExitReason.FINISHED,
        ExitReason.KILLED,
        ExitReason.NODE_LOST,
        ExitReason.UNKNOWN,
    )
    if ended.reason not in from_outside or ended.code in _CRASHES:
        return True
    return not (ended.was_ready if ended.role is Role.PS else ended.tasks_done)
