"""Whether `--job_dir` holds a job that the same command goes on with."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, StateError
from elasticdl.launchers.process.folder import held
from elasticdl.runtime import process

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
    """Have a job in `--job_dir` that has failed go on, if it can; see `holds_job`.

    Raises:
        LaunchError: The job is running now.
        StateError: Its journal cannot be read or written.
    """
    from elasticdl.master import durable
    from elasticdl.state.open import open_state, state_file

    job_dir = config.cluster.job_dir
    if job_dir is None or config.is_on_kubernetes:
        return
    path = state_file(config.cluster.state, job_dir)
    is_known = is_of_job(config)  # its journal may be in an etcd
    if not is_known or (path is not None and not path.is_file()):
        return  # it is a new one
    with held(job_dir), contextlib.closing(open_state(config.cluster.state, job_dir)) as state:
        durable.reopen(state)


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
