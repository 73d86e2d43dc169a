"""The folder `JOB-inputs`: what a program gives to its job, beside the folder of the job."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from elasticdl.cli.job_folder import check_may_go_on


@contextlib.contextmanager
def replaced(job_dir: Path) -> Iterator[Path]:
    """Return a context in which the inputs of a job are written anew; yield their folder.

    If the job is refused in it, the inputs are those from before.

    Raises:
        LaunchError: The job runs.
        ConfigError: The job has ended.
    """
    check_may_go_on(job_dir)
    inputs = job_dir.with_name(f"{job_dir.name}-inputs")
    before = job_dir.with_name(f"{job_dir.name}-inputs-before")
    if before.exists():  # a program was killed in this context
        _put_back(before, inputs)
    if inputs.exists():
        inputs.rename(before)
    try:
        yield inputs
    except BaseException:
        _put_back(before, inputs)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _put_back(before: Path, inputs: Path) -> None:
    shutil.rmtree(inputs, ignore_errors=True)
    if before.exists():
        before.rename(inputs)
