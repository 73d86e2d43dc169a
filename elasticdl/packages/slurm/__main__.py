"""`python -m elasticdl.packages.slurm`: the task of Slurm that runs the master of a job.

Slurm starts the task again on another node if its node is lost or given to others. The workers and
ps replicas go on meanwhile, in their own tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import time
from pathlib import Path

from elasticdl.checkpoints.in_use import all_claimed
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.supervisor import NAME, Supervisor
from elasticdl.launchers.signals import Signals
from elasticdl.packages.slurm.options import submit_master
from elasticdl.packages.slurm.own_task import Request, address, own_task, why_asked
from elasticdl.packages.slurm.roster import Roster
from elasticdl.runtime import open_files, process
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.log_lines import log_as

_HELD_SECONDS = 60.0  # until what ran the job on a lost node lets go of its folder

_AWAY_SECONDS = 60.0  # that Slurm may be away when a task is to end
_log = logging.getLogger(__name__)


def main() -> None:
    """Run a job to its end, or until its task of Slurm is to begin again elsewhere."""
    open_files.raise_limit()
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--job_dir", type=Path, required=True, help="the job's folder")
    job_dir: Path = parser.parse_args().job_dir
    log_as(NAME)
    with contextlib.ExitStack() as held, Signals() as signals:
        try:
            _hold(job_dir, held, signals)
            config = JobConfig.read(job_dir / process.CONFIG_FILE)
            name = f"{config.cluster.job_name} in {job_dir}"
            warning = held.enter_context(all_claimed(config.claims, name))
            folder.clear(job_dir)
            tls_dir = credentials.folder_of(config.cluster, job_dir)
            listening = Listening("0.0.0.0", address())
            supervisor = Supervisor(job_dir, signals, tls_dir, listening, is_shared=True)
            supervisor.start(warning)
        except (ElasticdlError, OSError) as error:
            _log.error("%s", error)
            words = {"status": "failed", "message": str(error)}
            process.write_whole(job_dir / folder.END_FILE, json.dumps(words))
            raise SystemExit(1) from None
        end = supervisor.run()
    if end is None:
        return
    if end.status == "failed":
        raise SystemExit(1)
    _come_back(job_dir, config)
    raise SystemExit(process.STOPPED_EXIT_CODE)


def _hold(job_dir: Path, held: contextlib.ExitStack, signals: Signals) -> None:
    """Hold the lock of the one process that runs the job.

    Raises:
        LaunchError: Another process runs the job, and does not end.
    """
    deadline = time.monotonic() + _HELD_SECONDS
    while True:
        try:
            held.enter_context(folder.held(job_dir))
            return
        except LaunchError:
            if time.monotonic() >= deadline or signals.wait(1.0):
                raise


def _come_back(job_dir: Path, config: JobConfig) -> None:
    """Make a master run elsewhere, if this task was asked to end and is not cancelled."""
    end_file, deadline = job_dir / folder.END_FILE, time.monotonic() + _AWAY_SECONDS
    try:
        request = why_asked(own_task(), _AWAY_SECONDS)
        _log.info("asked to end: %s", request.value)
        if request is Request.CANCELLED:
            return
        end_file.unlink(missing_ok=True)
        if request is Request.NOTICE:  # a new task may begin sooner than one that is queued again
            left = deadline - time.monotonic()
            Roster(job_dir).write_master(submit_master(config, job_dir, left))
    except (LaunchError, OSError) as error:
        _log.error("%s", error)
        words = {"status": "stopped", "message": f"no task of Slurm takes over: {error}"}
        with contextlib.suppress(OSError):
            process.write_whole(end_file, json.dumps(words))


if __name__ == "__main__":
    main()
