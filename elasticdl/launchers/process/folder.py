"""The folder of a local job: its settings, its secret, who runs it, and how it ended.

The folder is on this machine, or shared by a file system: everything in it is found by path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from elasticdl.checkpoints.in_use import NO_LOCKS
from elasticdl.checkpoints.versions import resolve
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.launchers.process.pids import parse_ref, ref_of
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.locks import lock_holders
from elasticdl.runtime.secret_files import make_private, private_opener

JOBS = Path("jobs")
"""Where jobs without --job_dir get their folders, below the current one."""

RUN_FILE = "running.json"
"""The process that runs the job; locked while it lives."""

END_FILE = "end.json"
"""How the job's processes ended, if the job itself did not."""

_log = logging.getLogger(__name__)


def prepare(config: JobConfig) -> Path:
    """Return the folder of a job; a new one gets its configuration and a new secret.

    Raises:
        ConfigError: It cannot be made.
    """
    job_dir = (config.cluster.job_dir or JOBS).absolute()
    try:
        if config.cluster.job_dir is None:
            job_dir = new_folder(config)
        make_private(job_dir)
        if not (job_dir / process.TOKEN_FILE).exists():
            process.write_token(job_dir / process.TOKEN_FILE)
        credentials.prepare(config.cluster, job_dir)
        path = job_dir / process.CONFIG_FILE
        before = JobConfig.read(path) if path.exists() else None  # it is the folder of a job
        settled = _settled(config, job_dir) if before is None else before.going_on(config)
        if settled != before:
            # It may have a password of --data_reader_params.
            process.write_whole(path, settled.model_dump_json(indent=2), 0o600)
    except OSError as error:
        raise ConfigError(f"--job_dir={job_dir}: cannot be made: {error}") from error
    return job_dir


def new_folder(config: JobConfig) -> Path:
    """Return where a job without --job_dir has its folder; makes nothing."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    job_dir = JOBS.absolute() / f"{config.cluster.job_name}-{stamp}"
    number = 1
    while job_dir.exists():
        number += 1
        job_dir = job_dir.with_name(f"{config.cluster.job_name}-{stamp}-{number}")
    return job_dir


def find(name: str) -> Path | None:
    """Return the folder that a user means: a path, or a job below `JOBS`, the newest of a name."""
    candidates = [Path(name)]
    if Path(name).name == name:
        candidates.append(JOBS / name)
        # NAME-YYYYMMDD-HHMMSS, and a number if there are several.
        stamp = "[0-9]" * 8 + "-" + "[0-9]" * 6
        found = [*JOBS.glob(f"{name}-{stamp}"), *JOBS.glob(f"{name}-{stamp}-*")]
        candidates += sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    folders = (path for path in candidates if (path / process.CONFIG_FILE).is_file())
    folder = next(folders, None)
    return None if folder is None else folder.absolute()


@contextlib.contextmanager
def held(job_dir: Path) -> Iterator[None]:
    """Be the one process that runs the job, within the block.

    Raises:
        LaunchError: Another one runs it.
    """
    path = job_dir / RUN_FILE
    with open(path, "a+", opener=private_opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(_running(job_dir, path)) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _log.warning(
                "--job_dir=%s: this file system has no locks; see to it that nobody starts the "
                "job twice",
                job_dir,
            )
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "process": ref_of(os.getpid())}))
        file.flush()
        yield


def _running(job_dir: Path, path: Path) -> str:
    """Say who keeps a job's folder: the process that runs the job, or a stranger."""
    holders = lock_holders(path)
    try:
        pid = parse_ref(str(json.loads(path.read_text())["process"])).pid
    except (OSError, ValueError, KeyError, TypeError):
        pid = None
    if holders and pid is not None and pid not in [holder.pid for holder in holders]:
        return (
            f"--job_dir={job_dir}: {path} is locked by {', '.join(map(str, holders))}, which does "
            "not run the job: end that process"
        )
    return (
        f"--job_dir={job_dir}: the job in this folder is running"
        f"{f' ({holders[0]})' if holders else ''}; elasticdl attach {job_dir} shows it"
    )


def clear(job_dir: Path) -> None:
    """Remove what an earlier run of the job has left of its end, and where its master was."""
    for name in (process.ADDRESS_FILE, process.PICTURE_FILE, END_FILE):
        (job_dir / name).unlink(missing_ok=True)


def _settled(config: JobConfig, job_dir: Path) -> JobConfig:
    """Return the configuration with what must stay the same for as long as the job lives.

    The newest checkpoint of a folder is another one later, perhaps one of this very job.
    """
    cluster = config.cluster.model_copy(update={"job_dir": job_dir})
    checkpoint = config.checkpoint
    if (source := checkpoint.checkpoint_dir_for_init) is not None:
        checkpoint = checkpoint.model_copy(update={"checkpoint_dir_for_init": resolve(source)})
    return config.model_copy(update={"cluster": cluster, "checkpoint": checkpoint})
