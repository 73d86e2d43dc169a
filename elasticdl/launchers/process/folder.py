"""The folder of a local job: its settings, its secret, the pid of its root, and its end.

The folder is on this machine, or on a shared file system. All its files are found by path.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from elasticdl import registry
from elasticdl.checkpoints.in_use import NO_LOCKS
from elasticdl.checkpoints.versions import resolve
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.launchers.process.pids import parse_ref, ref_of
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.credentials.files import FOLDER as TLS_FOLDER
from elasticdl.runtime.locks import lock_holders
from elasticdl.runtime.secret_files import make_private, private_opener

JOBS = Path("jobs")
"""Jobs without --job_dir get their folders here, below the current folder."""

RUN_FILE = "running.json"
"""The file with the process that runs the job; the file is locked while that process lives."""

END_FILE = "end.json"
"""The file that tells how the job's processes ended, if the job itself did not."""

_log = logging.getLogger(__name__)


MADE_FIRST = (RUN_FILE, process.TOKEN_FILE, TLS_FOLDER, f"{process.CONFIG_FILE}.*")
"""A command makes these in a new folder before the settings, which make the folder a job's folder.

As long as there are no settings they are made anew: the earlier command was killed.
"""

_TRIES = 50
_WRITE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class HeldFolder:
    """A job's folder, and the open file whose lock keeps other processes from running the job."""

    job_dir: Path
    lock: TextIO


def prepare(config: JobConfig) -> Path:
    """Return the folder of a job as `prepared` makes it, and release its lock."""
    with prepared(config) as held:
        return held.job_dir


@contextlib.contextmanager
def prepared(config: JobConfig) -> Iterator[HeldFolder]:
    """Hold the folder of a job within the block; a new folder gets settings and a new secret.

    The lock is taken before all else, so of two commands only one makes the folder. A process that
    inherits the open file of the lock keeps holding the folder.

    Raises:
        ConfigError: The folder cannot be made, or has another job.
        LaunchError: The job is running.
    """
    job_dir = (config.cluster.job_dir or JOBS).absolute()
    try:
        if config.cluster.job_dir is None:
            job_dir = _make_new(config)
        held = contextlib.ExitStack()
        lock = held.enter_context(_locked(job_dir))
        with held:
            _fill(config, job_dir)
            yield HeldFolder(job_dir, lock)
    except OSError as error:
        raise ConfigError(f"--job_dir={job_dir}: cannot be made: {error}") from error


def _fill(config: JobConfig, job_dir: Path) -> None:
    """Write the first files of a job's folder; the settings come last."""
    path, token = job_dir / process.CONFIG_FILE, job_dir / process.TOKEN_FILE
    before = JobConfig.read(path) if path.exists() else None
    if before is None or not token.exists():
        token.unlink(missing_ok=True)
        process.write_token(token)
    credentials.prepare(config.cluster, job_dir, is_new=before is None)
    settled = _settled(config, job_dir) if before is None else before.going_on(config)
    if settled != before:
        # The settings may have a password of --data_reader_params.
        process.write_whole(path, settled.model_dump_json(indent=2), 0o600)
    kept: dict[str, Callable[[JobConfig, Path, bytes], None]] = registry.brought("job_folders")
    for fill in kept.values():
        fill(settled, job_dir, process.read_token(token))


def new_folder(config: JobConfig) -> Path:
    """Return the folder for a job without --job_dir; the folder is not made."""
    return next(each for each in _new_folders(config) if not each.exists())


def _make_new(config: JobConfig) -> Path:
    """Make the folder of a job without --job_dir; no other command makes the same folder."""
    for job_dir in _new_folders(config):
        job_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            job_dir.mkdir(mode=0o700)
            return job_dir
    raise AssertionError("there is always another number")


def _new_folders(config: JobConfig) -> Iterator[Path]:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    first = JOBS.absolute() / f"{config.cluster.job_name}-{stamp}"
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def check_not_running(job_dir: Path) -> None:
    """Check that no process runs the job in a folder, or prepares it.

    Raises:
        LaunchError: Another process does.
    """
    if (job_dir / RUN_FILE).exists():
        with _locked(job_dir):
            pass


def find(name: str) -> Path | None:
    """Return the folder that a user means: a path, or the newest job of a name below `JOBS`."""
    candidates = [Path(name)]
    if Path(name).name == name:
        candidates.append(JOBS / name)
        # NAME-YYYYMMDD-HHMMSS, and a number if there are several.
        stamp = "[0-9]" * 8 + "-" + "[0-9]" * 6
        found = [*JOBS.glob(f"{name}-{stamp}"), *JOBS.glob(f"{name}-{stamp}-*")]
        # By the times in their names: a report or a log changes the time of an old folder.
        candidates += sorted(
            found,
            key=lambda path: [int(word) for word in re.findall(r"\d+", path.name[len(name) :])],
            reverse=True,
        )
    folders = (path for path in candidates if (path / process.CONFIG_FILE).is_file())
    folder = next(folders, None)
    return None if folder is None else folder.absolute()


@contextlib.contextmanager
def held(job_dir: Path, lock: int | None = None) -> Iterator[None]:
    """Hold the lock of the one process that runs the job, within the block.

    Args:
        job_dir: The job's folder.
        lock: Descriptor of the open file of `HeldFolder`, which this process has inherited.

    Raises:
        LaunchError: Another process runs the job.
    """
    with _locked(job_dir, lock):
        yield


@contextlib.contextmanager
def _locked(job_dir: Path, lock: int | None = None) -> Iterator[TextIO]:
    path = job_dir / RUN_FILE
    with _opened(job_dir) if lock is None else os.fdopen(lock, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(_running(job_dir, path)) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _log.warning(
                "--job_dir=%s: this file system has no locks; make sure that nobody starts the "
                "job twice",
                job_dir,
            )
        # The kernel says who took the lock: the command, which may have handed it over.
        taken_by = os.getpid() if lock is None else os.getppid()
        words = json.dumps(
            {
                "host": socket.gethostname(),
                "process": ref_of(os.getpid()),
                "locked_by": taken_by,
            }
        )
        file.truncate(0)
        file.write(words)
        file.flush()
        try:
            yield file
        finally:
            with contextlib.suppress(OSError):  # the folder was removed
                if path.read_text() == words:  # else it was handed over
                    file.truncate(0)


def _opened(job_dir: Path) -> TextIO:
    """Open the file of the lock, and make the folder if it does not exist.

    A command that only checks whether the folder can be made removes the folder again. Then it is
    made again here.
    """
    for _ in range(_TRIES):
        make_private(job_dir)
        with contextlib.suppress(FileNotFoundError):
            return open(job_dir / RUN_FILE, "a+", opener=private_opener)
    raise FileNotFoundError(f"{job_dir} is removed again and again")


def _running(job_dir: Path, path: Path) -> str:
    """Return who holds a job's folder: the process that runs the job, or an unknown process."""
    known: set[int] = set()
    pid = None
    for _ in range(_TRIES):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(path.read_text())
            pid = parse_ref(str(found["process"])).pid
            known = {pid, int(found.get("locked_by", pid))}
            break
        time.sleep(_WRITE_SECONDS)  # who has just locked it writes next who it is
    strangers = [holder for holder in lock_holders(path) if holder.pid not in known]
    if strangers:
        return (
            f"--job_dir={job_dir}: {path} is locked by {', '.join(map(str, strangers))}, which "
            "does not run the job: end that process"
        )
    who = f" (process {pid})" if pid is not None else ""
    # A job of one process (--distribution_strategy=Local) has no settings here, and no other view.
    is_one_process = not (job_dir / process.CONFIG_FILE).is_file()
    shows = "the command that runs it" if is_one_process else f"elasticdl attach {job_dir}"
    return f"--job_dir={job_dir}: the job in this folder is running{who}; {shows} shows it"


def clear(job_dir: Path) -> None:
    """Remove the files about the end and about the master of an earlier run of the job."""
    for name in (process.ADDRESS_FILE, process.PICTURE_FILE, END_FILE):
        (job_dir / name).unlink(missing_ok=True)


def _settled(config: JobConfig, job_dir: Path) -> JobConfig:
    """Return the configuration with values that stay the same for the life of the job.

    The newest checkpoint of a folder changes, and may even become a checkpoint of this job.
    """
    cluster = config.cluster.model_copy(update={"job_dir": job_dir})
    checkpoint = config.checkpoint
    if (source := checkpoint.checkpoint_dir_for_init) is not None:
        checkpoint = checkpoint.model_copy(update={"checkpoint_dir_for_init": resolve(source)})
    return config.model_copy(update={"cluster": cluster, "checkpoint": checkpoint})
