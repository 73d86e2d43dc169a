"""Runs one job, from its configuration to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from elasticdl.checkpoints.in_use import all_claimed
from elasticdl.cli import job_folder, preflight, summary
from elasticdl.cli.display import Display
from elasticdl.cli.plain_display import JsonDisplay, QuietDisplay
from elasticdl.cli.stay import Stay
from elasticdl.cli.terminal import echo, is_closed
from elasticdl.cli.view import LeftError, view
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, ElasticdlError, JobFailedError
from elasticdl.job import Strategy
from elasticdl.job.status import JobStatus, no_status
from elasticdl.launchers import choose
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.process.folder import RUN_FILE, held
from elasticdl.launchers.signals import is_for_others

_STOPPED = 130  # the shell's exit code for a command that Ctrl-C ended


_DISPLAYS = {"text": Display, "json": JsonDisplay, "quiet": QuietDisplay}


def run(config: JobConfig, stay: Stay = Stay.TIED, look: str = "text") -> int:
    """Run a job, show it, write its summary, and return the exit code of the command.

    `look` is the form of the display: text, json or quiet.

    Raises:
        ElasticdlError: The job cannot start, or did not do all of its work.
    """
    if stay is not Stay.TIED and config.training.distribution_strategy is Strategy.LOCAL:
        raise ConfigError(
            f"--{stay}: a job with --distribution_strategy=Local is this command; expected "
            f"--distribution_strategy={Strategy.PARAMETER_SERVER}"
        )
    if stay is Stay.DETACH:
        return _start_only(config)
    display = _DISPLAYS[look](
        has_processes=config.training.distribution_strategy is not Strategy.LOCAL,
        may_redraw=look == "text" and not config.model.run_eagerly,
        loading=preflight.framework(config),
    )
    places: dict[str, str] = {}
    found_job = job_folder.is_of_job(config)
    try:
        _tell(preflight.check(config))
        with display:
            status = _run(config, stay, display, places)
    except LeftError as left:
        return left_alone(str(left))
    except BaseException as error:
        if found_job and "job_dir" not in places:
            raise  # nothing has begun: the summary is that of the job in the folder
        # Whatever ended the job, the last job's summary must not be taken for this one's.
        reason = _stopped_by(error)
        _write_summary(
            config,
            dataclasses.replace(
                _last(config, display),
                status="stopped" if reason else "failed",
                message=reason or str(error),
            ),
            display,
            places,
            may_fail=True,
        )
        raise
    display.finish(status, places)
    _write_summary(config, status, display, places)
    return exit_code(status)


def _stopped_by(error: BaseException) -> str:
    """Return which action of a user ended a job with an error; "" if none did."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    # SIGHUP comes too, but what is printed next may find it first.
    return "the terminal was closed" if isinstance(error, OSError) and is_closed() else ""


def exit_code(status: JobStatus) -> int:
    """Return the exit code for the last picture of a job.

    Raises:
        JobFailedError: The job has failed.
    """
    if status.status in ("stopped", "suspended"):
        return _STOPPED
    if status.status != "finished":
        raise JobFailedError(status.message or f"the job ended as {status.status!r}")
    return 0


def _run(config: JobConfig, stay: Stay, display: Display, places: dict[str, str]) -> JobStatus:
    """Run the job where its strategy says; add the places of its results to `places`."""
    results = {name: getattr(config.checkpoint, name) for name in ("output", "export_tables")}
    places |= {k: str(v) for k, v in (results | config.claims).items() if v is not None}
    if config.training.distribution_strategy is Strategy.LOCAL:
        from elasticdl.cli import local  # the whole worker, and so perhaps a framework

        folder = config.cluster.job_dir
        if folder is not None and (folder / RUN_FILE).exists():
            display.note(
                f"--job_dir={folder}: a job with --distribution_strategy=Local is not continued: "
                "this one begins anew; --checkpoint_dir_for_init begins with a checkpoint"
            )
        with _holds(folder), _claims(config, display), ends_in_order():
            return local.run(config, display)
    for note in choose.notes(config):
        display.note(note)
    if (status := _end_begun_tasks(config, display)) is not None:
        return status
    since = time.time()
    job = _submit(config, stay is Stay.TIED, display.note)
    places |= job.places
    return view(job, display, since)


def _submit(config: JobConfig, is_tied: bool, tell: Callable[[str], None]) -> SubmittedJob:
    """Start or resume a job; tell if its model file has changed meanwhile."""
    file = None
    if config.model.script is None:
        with contextlib.suppress(ElasticdlError):
            file = preflight.find_model_file(config)
    # The note needs the former digest, which `remember_model` replaces below.
    if file is not None and (note := job_folder.note_of_model(config, file)):
        tell(note)
    job_folder.reopen(config)
    job = choose.submitter_for(config).submit(config, is_tied)
    if file is not None and "job_dir" in job.places:
        job_folder.remember_model(config, Path(job.places["job_dir"]), file)
    return job


def _end_begun_tasks(config: JobConfig, display: Display) -> JobStatus | None:
    """Let the former model do the begun tasks, if another model is to resume the job.

    Returns:
        The last picture of a job that ended meanwhile; None: the other model may resume the job.
    """
    before = job_folder.model_before(config)
    if before is None:
        return None
    try:
        for _ in preflight.check(before):
            pass  # it was told when the job began
    except ElasticdlError as error:
        raise ConfigError(
            f"--model_changes=true: the model before, --model_def={before.model.model_def}, has to "
            f"finish the tasks that it has begun, but cannot: {error}"
        ) from error
    display.note(
        f"the model changes: {before.model.model_def} first finishes the tasks that it has begun, "
        "because the order of their records is its own"
    )
    since = time.time()
    job = choose.submitter_for(before).submit(before, is_tied=True)
    status = view(job, display, since)
    return None if status.status == "stopped" and job_folder.is_at_rest(config) else status


@contextlib.contextmanager
def ends_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a job in this process as Ctrl-C does, and let the summary say so.

    A second signal ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever called us has signals of its own
        return

    def end(number: int, frame: FrameType | None) -> None:
        # With the default action back, a second signal ends a process that hangs in its cleanup.
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if not is_for_others(each)]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        echo(f"note: {note}", err=True)


def submit(config: JobConfig) -> SubmittedJob:
    """Start a job that goes on without this process, and print the notes about it.

    Raises:
        ElasticdlError: The job cannot start.
    """
    _tell([*preflight.check(config), *choose.notes(config)])
    ended = _end_begun_tasks(config, QuietDisplay())
    if ended is not None:
        raise JobFailedError(f"the tasks of the model before were not finished: {ended.message}")
    return _submit(config, is_tied=False, tell=lambda note: _tell([note]))


def _start_only(config: JobConfig) -> int:
    """Start a job, and print the commands that show it."""
    if config.checkpoint.summary is not None:
        raise ConfigError(
            "--summary is written by a command that waits for the end of the job: use --wait "
            "instead of --detach, or `elasticdl status --json` after the end"
        )
    for line in _ways_to(submit(config).name):
        echo(line)
    return 0


def left_alone(job: str) -> int:
    """Print how to follow a job that goes on; return the exit code of the command."""
    echo("the job goes on")
    for line in _ways_to(job):
        echo(line)
    return _STOPPED


def _ways_to(job: str) -> Iterator[str]:
    """Yield the ways to follow a job that goes on without the command."""
    yield f"job     {job}"
    yield f"show    elasticdl attach {job}"
    yield f"logs    elasticdl logs {job} -f"
    yield f"cancel  elasticdl stop {job}"


def _holds(job_dir: Path | None) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a job's folder in this process, if the job has a folder."""
    return contextlib.nullcontext() if job_dir is None else held(job_dir.absolute())


@contextlib.contextmanager
def _claims(config: JobConfig, display: Display) -> Iterator[None]:
    """Hold within the block the places that no other running job may write to."""
    where = f" in {config.cluster.job_dir}" if config.cluster.job_dir else ""
    with all_claimed(config.claims, f"{config.cluster.job_name}{where}") as warning:
        if warning:
            display.note(warning)
        yield


def _last(config: JobConfig, display: Display) -> JobStatus:
    if display.last is not None:
        return display.last
    return no_status(config.cluster.job_name, config.training.num_epochs)


def _write_summary(
    config: JobConfig,
    status: JobStatus,
    display: Display,
    places: dict[str, str],
    may_fail: bool = False,
) -> None:
    path = config.checkpoint.summary
    if path is None:
        return
    try:
        summary.write(path, summary.summarise(status, display.events, places))
    except ElasticdlError:
        if not may_fail:  # the error under way says more
            raise
