"""Finds out whether `--job_dir` holds a job that the same command resumes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, StateError
from elasticdl.launchers.process.folder import check_not_running, held
from elasticdl.runtime import process

if TYPE_CHECKING:
    from elasticdl.state.base import State

_MODEL_DIGEST = "model.sha256"
_INIT = "checkpoint_dir_for_init"


def is_of_job(config: JobConfig) -> bool:
    """Return whether `--job_dir` holds any job, in any state."""
    job_dir = config.cluster.job_dir
    return job_dir is not None and (job_dir / process.CONFIG_FILE).is_file()


def holds_job(config: JobConfig) -> bool:
    """Return whether `--job_dir` holds this very job, so that the command resumes it.

    A job can be resumed if it has not ended, or if the cause of its failure may be gone; see
    `reopen`.

    Raises:
        ConfigError: The folder holds another job, or a job that has ended.
        LaunchError: The job is running now.
    """
    job_dir = config.cluster.job_dir
    if job_dir is None or not is_of_job(config):
        return False
    _check_settings(job_dir, config)
    _check_not_ended(job_dir, config)
    return True


def check_may_go_on(job_dir: Path) -> None:
    """Check that the job in a folder, if there is one, does not run and has not ended.

    Raises:
        ConfigError: It has ended.
        LaunchError: It runs.
    """
    check_not_running(job_dir)
    path = job_dir / process.CONFIG_FILE
    if path.is_file():
        _check_not_ended(job_dir, JobConfig.read(path))


def reopen(config: JobConfig) -> None:
    """Resume the job in `--job_dir`, even a failed job if it can be resumed.

    Raises:
        LaunchError: The job is running now.
        StateError: Its journal cannot be read or written.
    """
    from elasticdl.master import durable

    with _journal(config) as state:
        if state is not None:
            durable.reopen(state)
            durable.change_model(state, "")


def model_before(config: JobConfig) -> JobConfig | None:
    """Return the settings with which the begun tasks must be done first; None: with these settings.

    They are the settings of the job in `--job_dir`, if another model resumes the job. A begun task
    counts how many of its records are done. Only the model that has trained them knows the order of
    the records.

    Raises:
        ConfigError: The folder has no settings of a job.
        LaunchError: The job is running now.
        StateError: Its journal cannot be read or written.
    """
    from elasticdl.master import durable
    from elasticdl.master.history import AT_REST, BEGUN_FIRST

    job_dir = config.cluster.job_dir
    if not config.model.model_changes or job_dir is None or not is_of_job(config):
        return None
    before = JobConfig.read(job_dir / process.CONFIG_FILE)
    is_other = before.model.model_copy(update={"model_changes": True}) != config.model
    if not is_other or not (before.keeps_own_checkpoints or before.checkpoint.checkpoint_dir):
        return None  # without a checkpoint all that was trained is trained again
    with _journal(config) as state:
        # If no task has begun, the other model can take over at once.
        if state is None or durable.model_change(state) == AT_REST:
            return None
        durable.change_model(state, BEGUN_FIRST)
        durable.reopen(state)
    return before.going_on(config.model_copy(update={"model": before.model}))


def note_of_model(config: JobConfig, model_file: Path) -> str:
    """Return a note if the model file was changed since the last run of the job; "" if not.

    A changed file is no error: a corrected model file may resume the job.
    """
    job_dir = config.cluster.job_dir
    if job_dir is None or not is_of_job(config):
        return ""
    try:
        digest, _, model_def = (job_dir / _MODEL_DIGEST).read_text().partition(" ")
    except OSError:
        return ""  # it was begun by an earlier version, or has not run
    if model_def != config.model.model_def or digest == _digest(model_file):
        return ""
    return (
        f"{model_file} was changed since the job ran last. A task that has begun continues after "
        "its trained minibatches: if feed now gives its records in another order, or leaves out "
        "other records, some are trained twice and others never"
    )


def remember_model(config: JobConfig, job_dir: Path, model_file: Path) -> None:
    """Store the digest with which `note_of_model` compares."""
    said = f"{_digest(model_file)} {config.model.model_def}"
    process.write_whole(job_dir / _MODEL_DIGEST, said)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def is_at_rest(config: JobConfig) -> bool:
    """Return whether another model may resume the job: none of the job's tasks is begun."""
    from elasticdl.master import durable
    from elasticdl.master.history import AT_REST

    with _journal(config) as state:
        return state is None or durable.model_change(state) == AT_REST


@contextlib.contextmanager
def _journal(config: JobConfig) -> Iterator[State | None]:
    """Open the journal of the job in `--job_dir`; None: no job, or one elsewhere."""
    from elasticdl.state.open import open_state, state_file

    job_dir = config.cluster.job_dir
    if job_dir is None or not config.launcher.sees_files:
        yield None
        return
    path = state_file(config.cluster.state, job_dir)
    is_known = is_of_job(config)  # its journal may be in an etcd
    if not is_known or (path is not None and not path.is_file()):
        yield None  # it is a new one
        return
    with held(job_dir), contextlib.closing(open_state(config.cluster.state, job_dir)) as state:
        yield state


def _check_settings(job_dir: Path, config: JobConfig) -> None:
    from elasticdl.master.durable import differing_flags

    path = job_dir / process.CONFIG_FILE
    try:
        before: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--job_dir={job_dir}: expected the settings of a job in {path}: {error}; name "
            "another folder"
        ) from error
    now = config.model_dump(mode="json")
    if _begins_alike(before, now):
        # The flag may name a folder whose newest checkpoint has changed since the job began.
        now["checkpoint"][_INIT] = before["checkpoint"][_INIT]
    differing = differing_flags(before, now, config.model.model_changes)
    if differing:
        is_of_model = not differing_flags(before, now, may_model_change=True)
        hint = "; --model_changes=true goes on with another model file" if is_of_model else ""
        raise ConfigError(
            f"--job_dir={job_dir}: the job in this folder was begun with other settings: "
            f"{'; '.join(differing)}. The same command as before goes on with it{hint}; for a new "
            "job, name another folder"
        )


def _begins_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether a job began with a checkpoint of the folder that is named now."""
    source, named = before.get("checkpoint", {}).get(_INIT), now["checkpoint"][_INIT]
    return source is not None and named is not None and Path(source).parent == Path(named)


def _check_not_ended(job_dir: Path, config: JobConfig) -> None:
    from elasticdl.master.durable import end_of_job
    from elasticdl.state.open import open_state, state_file

    path = state_file(config.cluster.state, job_dir)
    if path is not None and not path.is_file():
        return  # killed before its master began
    try:
        # The master of a job that begins just now must not find its state open.
        with held(job_dir), contextlib.closing(open_state(config.cluster.state, job_dir)) as state:
            end = end_of_job(state)
    except StateError as error:
        raise ConfigError(
            f"--job_dir={job_dir}: cannot go on with the job in this folder: {error}"
        ) from error
    if end is None or end.goes_on:
        return
    directory = config.checkpoint.checkpoint_dir
    later = ""
    if config.command == "train" and directory is not None:
        later = f"; --checkpoint_dir_for_init={directory} begins where it has ended"
    why = f" ({end.message})" if end.message else ""
    raise ConfigError(
        f"--job_dir={job_dir}: the job in this folder has {end.how}{why}; name another folder for "
        f"a new job{later}"
    )
