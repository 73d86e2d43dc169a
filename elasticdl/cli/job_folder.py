"""The folder of a job: a new one, or the one of a job that the same command goes on with."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from elasticdl import process
from elasticdl.checkpoints.versions import resolve
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, StateError

_INIT = "checkpoint_dir_for_init"


def holds_job(config: JobConfig) -> bool:
    """Whether `--job_dir` holds this very job, begun before and not ended.

    Raises:
        ConfigError: It holds another job, or one that has ended or is running now.
    """
    job_dir = config.cluster.job_dir
    if job_dir is None or not (job_dir / process.CONFIG_FILE).is_file():
        return False
    _check_settings(job_dir, config)
    _check_not_ended(job_dir, config)
    return True


def prepare(config: JobConfig) -> Path:
    """Return the folder of a job; a new one gets its configuration and a new secret.

    Raises:
        ConfigError: It cannot be made.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    job_dir = config.cluster.job_dir or Path("jobs") / f"{config.cluster.job_name}-{stamp}"
    number = 1
    try:
        while config.cluster.job_dir is None and job_dir.exists():
            number += 1
            job_dir = job_dir.with_name(f"{config.cluster.job_name}-{stamp}-{number}")
        job_dir = job_dir.absolute()
        job_dir.mkdir(parents=True, exist_ok=True)
        if not (job_dir / process.TOKEN_FILE).exists():
            process.write_token(job_dir / process.TOKEN_FILE)
        if not (job_dir / process.CONFIG_FILE).exists():
            _write_whole(_settled(config, job_dir), job_dir)
    except OSError as error:
        raise ConfigError(f"--job_dir={job_dir}: cannot be made: {error}") from error
    return job_dir


def _settled(config: JobConfig, job_dir: Path) -> JobConfig:
    """Return the configuration with what must stay the same for as long as the job lives.

    The newest checkpoint of a folder is another one later, perhaps one of this very job.
    """
    cluster = config.cluster.model_copy(update={"job_dir": job_dir})
    checkpoint = config.checkpoint
    if (source := checkpoint.checkpoint_dir_for_init) is not None:
        checkpoint = checkpoint.model_copy(update={"checkpoint_dir_for_init": resolve(source)})
    return config.model_copy(update={"cluster": cluster, "checkpoint": checkpoint})


def _write_whole(config: JobConfig, job_dir: Path) -> None:
    """Write the configuration; a folder that has it is the folder of a job."""
    partial = job_dir / f"{process.CONFIG_FILE}.partial"
    config.write(partial)
    os.replace(partial, job_dir / process.CONFIG_FILE)


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
    differing = differing_flags(before, now)
    if differing:
        raise ConfigError(
            f"--job_dir={job_dir}: the job in this folder was begun with other settings: "
            f"{'; '.join(differing)}. The same command as before goes on with it; for a new job, "
            "name another folder"
        )


def _begins_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a job began with a checkpoint of the folder that is named now."""
    source, named = before.get("checkpoint", {}).get(_INIT), now["checkpoint"][_INIT]
    return source is not None and named is not None and Path(source).parent == Path(named)


def _check_not_ended(job_dir: Path, config: JobConfig) -> None:
    from elasticdl.master.durable import end_of_job
    from elasticdl.state.sqlite import SqliteState

    path = job_dir / process.STATE_FILE
    if not path.is_file():
        return  # killed before its master began
    try:
        state = SqliteState(path)
        try:
            end = end_of_job(state)
        finally:
            state.close()
    except StateError as error:
        raise ConfigError(
            f"--job_dir={job_dir}: cannot go on with the job in this folder: {error}"
        ) from error
    if end is None:
        return
    how, message = end
    directory = config.checkpoint.checkpoint_dir
    later = ""
    if config.command == "train" and directory is not None:
        later = f"; --checkpoint_dir_for_init={directory} begins where it has ended"
    why = f" ({message})" if message else ""
    raise ConfigError(
        f"--job_dir={job_dir}: the job in this folder has {how}{why}; name another folder for a "
        f"new job{later}"
    )
