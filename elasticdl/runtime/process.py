"""The first steps of every process of a job: arguments, logging, signals, and the lifeline.

The **lifeline** is a pipe. The `elasticdl` command holds its write end and writes nothing; every
process of the job inherits the read end and waits on it. However the command ends, even by
`kill -9`, the kernel closes the write end, every reader sees the end of the file, and every process
ends itself. So the command need not know or tell the processes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.job import Role
from elasticdl.runtime import log_lines, open_files
from elasticdl.runtime.addresses import LOOPBACK, Listening, is_loopback
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.credentials.files import TlsFiles
from elasticdl.runtime.ending import end_now
from elasticdl.runtime.secret_files import check_secret
from elasticdl.runtime.start_up import collect_garbage

LIFELINE_VARIABLE = "ELASTICDL_LIFELINE_FD"
"""Environment variable with the file descriptor of the lifeline's read end."""

STOPPED_EXIT_CODE = 128 + signal.SIGTERM
"""Exit code of a process that was asked to end and did so in order."""

OWN_FAILURE_EXIT_CODE = 70
"""Exit code of a worker that failed for a reason that is not in its tasks."""

BUILDS_FROM, IS_BUILT = "builds the model from records of ", "the model is built"
"""A worker logs these before and after it builds the model, when it holds no task yet."""

TIMED_OUT_EXIT_CODE = 124
"""Exit code of a worker that ended itself because the user's code did not return."""

LOG_FOLDER = "logs"
"""Folder in the job's folder with the output of its processes on this machine."""

CONFIG_FILE = "job.json"
TOKEN_FILE = "token"
ADDRESS_FILE = "master.json"
"""File with the address of the master. Each master writes it, for commands on its machine."""

PICTURE_FILE = "status.json"
"""File with the last status of a job that has finished or failed."""

BEFORE_FILE = "before.json"
"""File with the newest status of a job that was stopped before its end."""

PAGE_FILE = "page.json"
"""File with the address and the token of the job's page; only the job's owner can read it."""

PROFILE_FOLDER, PROFILE_REQUEST = "profile", "request.json"
"""Folder and file in which `elasticdl profile` asks for records, and workers answer."""

PROFILE_RECORDING = "recording"
"""Ending of the file by which a ps replica says there that it records."""

_TOKEN_BYTES = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessArguments:
    """The settings with which a process starts.

    master: Address of the master, HOST:PORT; "" for the master itself.
    listening: Address at which the process listens. A worker listens for the other workers of its
        world, if it has a world.
    tls_dir: Folder of the certificates that the job makes; None if it makes none.
    tls: Certificate and key of this process; None without TLS. The master makes its own.
    """

    config: JobConfig
    token: bytes
    job_dir: Path
    master: str
    index: int
    listening: Listening
    tls_dir: Path | None = None
    tls: TlsFiles | None = None

    def master_now(self) -> str | None:
        """Return the master's address in the job's folder, if this process sees that folder."""
        is_here = is_loopback(self.master.rpartition(":")[0]) or self.config.shares_folder
        return master_address(self.job_dir) if is_here else None


def master_address(job_dir: Path) -> str | None:
    """Return the address of a local job's master; None until the master has written it."""
    try:
        return str(json.loads((job_dir / ADDRESS_FILE).read_text())["address"])
    except (OSError, ValueError, KeyError):
        return None


def module_of(role: Role) -> str:
    """Return the module that a process of a role runs."""
    return registry.places("roles").get(role, f"elasticdl.{role}")


def command(
    role: Role,
    index: int,
    job_dir: Path,
    master: str = "",
    listening: Listening | None = None,
    python: str = sys.executable,
    config_file: Path | None = None,
    token_file: Path | None = None,
    tls_dir: Path | None = None,
) -> tuple[str, ...]:
    """Return the command line that starts a process of the job in `job_dir`.

    Settings and secret are in that folder, unless the caller names other files.

    `-P` keeps the current folder off the import path, as for `elasticdl` itself. `-u` makes
    output of the user's code reach the log at once, before a kill.
    """
    words = [python, "-P", "-u", "-m", module_of(role)]
    words += ["--config", str(config_file or job_dir / CONFIG_FILE)]
    words += ["--token_file", str(token_file or job_dir / TOKEN_FILE)]
    words += ["--job_dir", str(job_dir), "--index", str(index)]
    if master:
        words += ["--master", master]
    if listening is not None:
        words += ["--bind_address", listening.bind]
        words += ["--advertise_address", listening.advertise] if listening.advertise else []
    if tls_dir is not None:
        words += ["--tls_dir", str(tls_dir)]
    return tuple(words)


def start(role: Role, argv: Sequence[str] | None = None) -> ProcessArguments:
    """Do what each process does first; call it once, from the main thread.

    Logs go to stderr (the launcher sends it to a file) and name the process. SIGTERM raises
    `SystemExit`, so `finally` blocks run. An uncaught `ElasticdlError` ends the process with exit
    code 1 and the message of the error as the last line of the log.

    Raises:
        ConfigError: The configuration or the token cannot be read, or the process may not listen
            at its address.
    """
    # The modules imported so far stay alive, so the collector may leave them out.
    collect_garbage()
    open_files.raise_limit()
    words = _parse(role, argv)
    log_lines.outlast_full_disks()
    # Text at first: an error in the settings must reach the log before their format is known.
    log_lines.log_as(process_name(role, words.index))
    sys.excepthook = _log_uncaught
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_in_order)
    lifeline = inherited_lifeline()
    if lifeline is not None:
        threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    config = JobConfig.read(words.config)
    name = process_name(role, words.index)
    log_lines.log_as(name, config.seeing.process_log_format)
    logging.getLogger().setLevel(config.cluster.log_level)
    listening = _may_listen(words, config)
    makes_own = role is Role.MASTER and words.tls_dir is not None
    token = read_token(words.token_file)
    if config.launcher.sees_files:  # else the master makes the secret, later than the command
        starts: dict[str, Callable[[Path, bytes], None]] = registry.brought("process_starts")
        for has_started in starts.values():
            has_started(words.job_dir, token)
    return ProcessArguments(
        config=config,
        token=token,
        job_dir=words.job_dir,
        master=words.master,
        index=words.index,
        listening=listening,
        tls_dir=words.tls_dir,
        tls=None if makes_own else credentials.of_role(config.cluster, words.tls_dir, name),
    )


def when_asked_to_end(hand_over: Callable[[], None]) -> None:
    """Call a function once when a signal asks this process to end; set up in the main thread.

    A separate thread calls the function at once, even if the main thread is busy in a framework.
    The function ends the process, or makes the main thread end it.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # `set_wakeup_fd` refuses a blocking descriptor
    asked = {int(signal.SIGTERM), int(signal.SIGINT)}

    def wait() -> None:
        while (number := os.read(read_end, 1)[0]) not in asked:
            pass
        _log.info("asked to end (%s)", signal.Signals(number).name)
        hand_over()

    def forget() -> None:
        # A process that the user's code forks has nothing to hand over, and must not ask us to.
        signal.set_wakeup_fd(-1)
        for number in asked:
            signal.signal(number, _end_in_order)

    threading.Thread(target=wait, name="asked to end", daemon=True).start()
    for number in asked:
        # Python writes to the wake-up descriptor only for signals with a handler.
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget)


def renewal(
    arguments: ProcessArguments, role: Role, sign: Callable[[bytes], bytes]
) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the certificate of this process is renewed, if it has to be.

    Args:
        arguments: The arguments of the process.
        role: The role of the process.
        sign: Function from a request in PEM to the next certificate.
    """
    name = process_name(role, arguments.index)
    cluster = arguments.config.cluster
    return credentials.renewal(cluster, arguments.tls_dir, arguments.tls, name, sign)


def run_to_own_failure(work: Callable[[], None]) -> None:
    """Run work whose failure is not the fault of the user's code; the exit code says so.

    The user's code may end the process too (`os._exit`), with another exit code.
    """
    try:
        work()
    except Exception as error:
        _log_uncaught(type(error), error, error.__traceback__)
        # The master then does not blame the tasks that this worker held.
        raise SystemExit(OWN_FAILURE_EXIT_CODE) from error


def fail_now(error: BaseException) -> NoReturn:
    """End this process like `run_to_own_failure`, from a thread for which no other waits."""
    _log_uncaught(type(error), error, error.__traceback__)
    end_now(OWN_FAILURE_EXIT_CODE)


def process_name(role: Role, index: int) -> str:
    """Return the name of a process in logs: `worker-3`, or `master`, since there is only one."""
    return str(role) if role is Role.MASTER else f"{role}-{index}"


def scratch_folder(job_dir: Path, role: Role, index: int) -> Path:
    """Return the folder for temporary files of a process. They are useless after its end."""
    return job_dir / "scratch" / process_name(role, index)


def rotate_log(config: JobConfig, job_dir: Path) -> None:
    """Begin a new log file if the present one is in the job's folder and is full."""
    log_lines.rotate_if_full(job_dir / LOG_FOLDER, config.seeing.log_file_bytes)


def inherited_lifeline() -> int | None:
    """Return the read end of the lifeline that this process inherited, or None.

    Raises:
        ConfigError: The environment names a descriptor that this process does not have.
    """
    value = os.environ.get(LIFELINE_VARIABLE)
    if value is None:
        return None
    try:
        descriptor = int(value)
        os.fstat(descriptor)  # a variable that was copied by hand names no open descriptor
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{LIFELINE_VARIABLE}={value}: expected an open file descriptor ({error}); "
            "unset it to start a process by hand"
        ) from error
    return descriptor


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file of the job under another name first, so that readers only see a whole file.

    Args:
        path: The file.
        text: The content.
        mode: Permissions, from which the umask of the process is removed.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        partial.touch(mode)
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk leaves a part of it
        raise


def write_token(path: Path) -> bytes:
    """Create a job's secret in a file that only its owner can read, and return it."""
    token = os.urandom(_TOKEN_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token.hex().encode("ascii"))
    return token


def read_token(path: Path) -> bytes:
    """Return the secret that `write_token` wrote.

    Raises:
        ConfigError: The file is missing, can be read by others, or holds something else.
    """
    try:
        check_secret(path, "--token_file")
        token = bytes.fromhex(path.read_text("ascii"))
    except OSError as error:
        raise ConfigError(f"--token_file={path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--token_file={path}: expected hexadecimal digits") from error
    if len(token) != _TOKEN_BYTES:
        raise ConfigError(f"--token_file={path}: expected {_TOKEN_BYTES} bytes, found {len(token)}")
    return token


def _parse(role: Role, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m elasticdl.{role}",
        description=f"The {role} process of a job; started by a launcher.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, help="the job's job.json")
    parser.add_argument("--token_file", type=Path, required=True, help="the job's secret")
    parser.add_argument("--job_dir", type=Path, required=True, help="folder for state and logs")
    parser.add_argument("--index", type=int, default=0, help="number among the role's processes")
    parser.add_argument(
        "--master",
        required=role is not Role.MASTER,
        default="",
        help="address of the master, HOST:PORT",
    )
    parser.add_argument(
        "--bind_address", default=LOOPBACK, help="address to listen at; 0.0.0.0: every one"
    )
    parser.add_argument(
        "--advertise_address",
        default="",
        help="address or name under which others find this process [default: --bind_address]",
    )
    parser.add_argument("--tls_dir", type=Path, help="certificates that the job makes")
    return parser.parse_args(argv)


def _may_listen(words: argparse.Namespace, config: JobConfig) -> Listening:
    """Return the address at which the process listens; check that it may listen there."""
    listening = Listening(words.bind_address, words.advertise_address)
    listening.check()
    # If the folder is given, the process uses the certificates of the job.
    if words.tls_dir is None and credentials.mode_of(config.cluster, listening.is_exposed) == "job":
        raise ConfigError(
            "--tls_dir: expected the folder with certificates that were made for this job: without "
            "them this process would tell the job's secret to whoever listens at the master's "
            "port; or start the job with --tls=off --insecure"
        )
    return listening


def _end_in_order(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second signal must not interrupt the `finally` blocks of the first.
    signal.signal(number, signal.SIG_IGN)
    _log.info("asked to end (%s)", signal.Signals(number).name)
    raise SystemExit(STOPPED_EXIT_CODE)


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    _log.error("the elasticdl command is gone; so this process ends")
    if os.getpgrp() == os.getpid():
        # The process leads its group, so this also ends processes that the user's code started.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, ElasticdlError):
        _log.error("%s: %s", kind.__name__, error)
    else:
        _log.critical("a defect in elasticdl or below it", exc_info=(kind, error, trace))
