"""`python -m elasticdl.launchers.process`: the root of a local job; `LocalSubmitter` starts it.

The root closes its standard output when the job has begun, or writes there why the job cannot
begin.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # what is imported stays; main has it looked for again

from elasticdl.checkpoints.in_use import all_claimed
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.supervisor import NAME, Supervisor
from elasticdl.launchers.signals import Signals
from elasticdl.runtime import open_files, process
from elasticdl.runtime.addresses import LOOPBACK, Listening
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.log_lines import log_as
from elasticdl.runtime.start_up import collect_garbage


def main() -> None:
    """Run a job to its end."""
    collect_garbage()
    open_files.raise_limit()  # what it starts has its limit
    words = _parse()
    log_as(NAME)
    with contextlib.ExitStack() as held, Signals() as signals:
        try:
            held.enter_context(folder.held(words.job_dir, words.lock))
            config = JobConfig.read(words.job_dir / process.CONFIG_FILE)
            warning = held.enter_context(_claim(config, words.job_dir))
            folder.clear(words.job_dir)
            tls_dir = credentials.folder_of(config.cluster, words.job_dir)
            listening = Listening(words.bind_address)
            supervisor = Supervisor(
                words.job_dir, signals, tls_dir, listening, config.shares_folder
            )
            supervisor.start(warning)
        except (ElasticdlError, OSError) as error:
            _answer(str(error))
            raise SystemExit(1) from None
        if words.leash is not None:
            supervisor.end_with(words.leash)
        _answer("")
        end = supervisor.run()
        if end is not None:
            raise SystemExit(1 if end.status == "failed" else process.STOPPED_EXIT_CODE)


def _claim(config: JobConfig, job_dir: Path) -> contextlib.AbstractContextManager[str]:
    """Hold the places that no other running job may write to."""
    return all_claimed(config.claims, f"{config.cluster.job_name} in {job_dir}")


def _answer(problem: str) -> None:
    """Print the problem, if any; then close the output, so that its reader goes on."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, problem.encode())
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elasticdl.launchers.process",
        description="The root of a local job; started by the elasticdl command.",
        allow_abbrev=False,
    )
    parser.add_argument("--job_dir", type=Path, required=True, help="the job's folder")
    parser.add_argument(
        "--leash", type=int, help="a pipe's read end; the job ends when the other end is closed"
    )
    parser.add_argument("--lock", type=int, help="the descriptor of the folder's lock")
    parser.add_argument(
        "--bind_address", default=LOOPBACK, help="where the master listens, and others find it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
