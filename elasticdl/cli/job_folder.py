"""Whether `--job_dir` holds a job that the same command goes on with."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, StateError
from elasticdl.launchers.process.folder import held
from elasticdl.runtime import process

if TYPE_CHECKING:
    from elasticdl.state.base import State

_MODEL_DIGEST = "model.sha256"
_INIT = "checkpoint_dir_for_init"


def is_of_job(config: JobConfig) -> bool:
    """Whether `--job_dir` holds a job, whichever it is, and whatever has become of it."""
    job_dir = config.cluster.job_dir
    return job_dir is not None and (job_dir / process.CONFIG_FILE).is_file()


def holds_job(config: JobConfig) -> bool:
    """Whether `--job_dir` holds this very job, begun before, with which one can go on.

    It has not ended; or it has failed of what may be well again, and `reopen` has it go on.

    Raises:
        ConfigError: It holds another job, or one that has ended.
        LaunchError: The job is running now.
    """
    job_dir = config.cluster.job_dir
    if job_dir is None or not is_of_job(config):
        return False
    _check_settings(job_dir, config)
    _check_not_ended(job_dir, config)
    return True


def reopen(config: JobConfig) -> None:
    """Have a job in `--job_dir` go on by this command, also one that has failed, if it can.

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
    """Return the settings by which the tasks that are begun are to be done first; None: by these.

    They are those of the job in `--job_dir`, where another model goes on with it. How many records
    of a task are done says which ones only to the model that has trained them: it orders them.

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
        if state is None or durable.model_change(state) == AT_REST:
            return None
        durable.change_model(state, BEGUN_FIRST)
        durable.reopen(state)
    return before.going_on(config.model_copy(update={"model": before.model}))


def note_of_model(config: JobConfig, model_file: Path) -> str:
    """Say that the model file was changed since the job in `--job_dir` ran last; "" if it was not.

    What is mended in it may go on with the job, so it is no error.
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
        f"{model_file} was changed since the job ran last. A task that is begun goes on after the "
        "minibatches that are trained: if feed gives its records in another order now, or leaves "
        "out others, some are trained twice and others never"
    )


def remember_model(config: JobConfig, job_dir: Path, model_file: Path) -> None:
    """Keep what `note_of_model` compares with."""
    said = f"{_digest(model_file)} {config.model.model_def}"
    process.write_whole(job_dir / _MODEL_DIGEST, said)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def is_at_rest(config: JobConfig) -> bool:
    """Whether another model may go on with the job in `--job_dir`: no task of it is begun."""
    from elasticdl.master import durable
    from elasticdl.master.history import AT_REST

    with _journal(config) as state:
        return state is None or durable.model_change(state) == AT_REST


@contextlib.contextmanager
def _journal(config: JobConfig) -> Iterator[State | None]:
    """Open the journal of the job in `--job_dir`; None: there is no job, or it is on Kubernetes."""
    from elasticdl.state.open import open_state, state_file

    job_dir = config.cluster.job_dir
    if job_dir is None or config.is_on_kubernetes:
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
    """Whether a job began with a checkpoint of the folder that is named now."""
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
