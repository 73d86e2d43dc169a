"""Runs Slurm's own commands, and reads their answers."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from elasticdl.errors import LaunchError

_SECONDS = 60.0  # for an answer: commands try again by themselves while a controller is away
_AGAIN_SECONDS = 2.0
_COLUMNS = "ArrayJobID:32,ArrayTaskID:16,StateCompact:16,RestartCnt:16,Reason:160"
_ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "RV", "TO"})
_WAITING = frozenset({"PD", "CF", "RH", "RQ", "RF", "SE", "RD"})
_SUSPENDED = frozenset({"S", "ST"})
# These errors mean that a controller is away or busy, or that a limit will let the job in later.
_PASSES = re.compile(
    "Unable to contact|Socket timed out|Connection refused|try again|temporarily|"
    "MaxSubmit|submit limit|Slurm backup controller|error communicating",
    re.IGNORECASE,
)

_GIVEN = frozenset(
    f"SBATCH_{name}"
    for name in (
        *("ARRAY_INX", "ERROR", "EXPORT", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "OUTPUT"),
        *("REQUEUE", "SIGNAL", "WAIT"),
    )
)
"""The variables that stand for options which the launcher gives, or must not give."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SlurmAwayError(LaunchError):
    """Slurm has not answered, or has no room for a request now."""


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """The state of a task, as Slurm reports it.

    state: Slurm's own letters, such as PD, R or CA. num_restarts: How often the task was queued
        again.
    reason: Why the task waits.
    """

    state: str
    num_restarts: int = 0
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the task will not run again."""
        return self.state in _ENDED

    @property
    def is_suspended(self) -> bool:
        """Return whether the task stands still in memory: somebody has suspended or stopped it."""
        return self.state in _SUSPENDED

    @property
    def is_waiting(self) -> bool:
        """Return whether the task is in the queue."""
        return self.state in _WAITING


def until_answered(ask: Callable[[], T], seconds: float) -> T:
    """Call a function that asks Slurm, again and again while Slurm is away; return its result.

    Raises:
        SlurmAwayError: Slurm was away for so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except SlurmAwayError as error:
            if time.monotonic() + _AGAIN_SECONDS > deadline:
                raise
            _log.warning("%s; it is asked again", error)
        time.sleep(_AGAIN_SECONDS)


def submit(script: str, words: Sequence[str]) -> str:
    """Queue a script with these options of `sbatch`; return the number of its job.

    Raises:
        LaunchError: Slurm refuses the script; the error says why.
        SlurmAwayError: Slurm may accept the script later, or has accepted it without an answer.
    """
    return _run("sbatch", "--parsable", *words, given=script).strip().partition(";")[0]


def jobs_named(name: str) -> set[str]:
    """Return the numbers of this user's jobs of a name that wait or run."""
    return set(_run("squeue", "--me", "-h", f"--name={name}", "-O", "JobID:32").split())


def own_tasks() -> dict[str, SlurmTask]:
    """Return all tasks of this user: JOB, or JOB_INDEX of an array; ended tasks for a while."""
    lines = _run("squeue", "--me", "-h", "-r", "-t", "all", "-O", _COLUMNS).splitlines()
    return dict(parse(line) for line in lines if line.strip())


def parse(line: str) -> tuple[str, SlurmTask]:
    """Read a line of `own_tasks`."""
    job, index, state, restarts, *reason = line.split(None, 4)
    name = f"{job}_{index}" if index.isdecimal() else job
    return name, SlurmTask(state, int(restarts), "".join(reason).strip())


def send(number: signal.Signals, tasks: Iterable[str]) -> None:
    """Send a signal to the processes of tasks.

    Raises:
        LaunchError: Slurm does not send it.
    """
    _run("scancel", "--quiet", "--batch", f"--signal={number.name.removeprefix('SIG')}", *tasks)


def cancel(tasks: Iterable[str], is_waiting: bool = False) -> None:
    """End tasks or jobs; with `is_waiting`, only those that still wait.

    Raises:
        LaunchError: Slurm does not end them.
    """
    _run("scancel", "--quiet", *(["--state=PENDING"] if is_waiting else []), *tasks)


def address_of_node(node: str) -> str:
    """Return the name or address at which Slurm itself reaches a node.

    Raises:
        LaunchError: Slurm does not know the node.
    """
    said = _run("scontrol", "show", "node", "--oneliner", node)
    found = re.search(r"\bNodeAddr=(\S+)", said)
    return found.group(1) if found else node


def _run(*words: str, given: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not _is_left_out(name)}
    try:
        done = subprocess.run(
            words,
            input=given or "",
            capture_output=True,
            text=True,
            env=environment,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmAwayError(f"{words[0]} has not answered in {_SECONDS:g} s") from error
    except OSError as error:
        raise LaunchError(
            f"--launcher=slurm: expected Slurm's command {words[0]}: {error}; is this a node from "
            "which jobs are submitted?"
        ) from error
    if done.returncode == 0:
        return done.stdout
    heads = re.compile(rf"^(?:{words[0]}: )?(?:(?:error|fatal): )?")
    said = "; ".join(heads.sub("", line) for line in done.stderr.splitlines() if line.strip())
    text = f"{words[0]}: {said or f'ended with exit code {done.returncode}'}"
    raise (SlurmAwayError if _PASSES.search(said) else LaunchError)(text)


def _is_left_out(variable: str) -> bool:
    """Return whether Slurm's commands must not see a variable of the environment.

    With SLURM_... a task would be told that it is one of the task that has asked for it. With the
    others users change the commands that they give themselves: SQUEUE_PARTITION hides tasks,
    SCANCEL_INTERACTIVE asks whether it is meant, and SBATCH_WAIT waits for the end of a job.
    """
    is_of_user = variable.startswith(("SLURM_", "SQUEUE_", "SCANCEL_"))
    return (is_of_user and variable != "SLURM_CONF") or variable in _GIVEN
