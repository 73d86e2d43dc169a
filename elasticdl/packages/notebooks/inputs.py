"""The folder `JOB-inputs`: what a program gives to its job, beside the folder of the job."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from elasticdl.cli.job_folder import check_may_go_on
from elasticdl.launchers.process.folder import held


@contextlib.contextmanager
def replaced(job_dir: Path) -> Iterator[Path]:
    """Return a context in which the inputs of a job are written anew; yield their folder.

    If the job is refused in it, the inputs are those from before.

    Raises:
        LaunchError: The job runs, or another program starts it.
        ConfigError: The job has ended.
    """
    inputs = job_dir.with_name(f"{job_dir.name}-inputs")
    scratch = job_dir.with_name(f"{job_dir.name}-inputs-before")
    before = scratch / "inputs"
    with contextlib.ExitStack() as ends:
        # Two programs may start the job at once, and its own lock is held only once it is
        # submitted. If nothing can be written beside the job, there are no inputs to protect.
        with contextlib.suppress(OSError):
            ends.enter_context(held(scratch))
        ends.callback(shutil.rmtree, scratch, ignore_errors=True)
        check_may_go_on(job_dir)
        if before.exists():  # a program was killed in this context
            _put_back(before, inputs)
        if inputs.exists():
            inputs.rename(before)
        try:
            yield inputs
        except BaseException:
            _put_back(before, inputs)
            raise


def _put_back(before: Path, inputs: Path) -> None:
    shutil.rmtree(inputs, ignore_errors=True)
    if before.exists():
        before.rename(inputs)
