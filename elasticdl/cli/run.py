"""One job from its configuration to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from elasticdl.checkpoints.in_use import claimed
from elasticdl.cli import preflight, summary
from elasticdl.cli.display import Display
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, JobFailedError
from elasticdl.job import JobStatus, Strategy

_STOPPED = 130  # the shell's exit code for a command that Ctrl-C ended


def run(config: JobConfig) -> int:
    """Run a job, show it, write its summary, and return the exit code of the command.

    Raises:
        ElasticdlError: The job cannot start, or did not do all of its work.
    """
    display = Display(
        has_processes=config.training.distribution_strategy is not Strategy.LOCAL,
        may_redraw=not config.model.run_eagerly,
    )
    places: dict[str, Path] = {}
    try:
        preflight.check(config)
        with display, _claims(config, display):
            status = _run(config, display, places)
    except BaseException as error:
        # Whatever ended the job, the last job's summary must not be taken for this one's.
        interrupted = isinstance(error, KeyboardInterrupt)
        _write_summary(
            config,
            dataclasses.replace(
                _last(config, display),
                status="stopped" if interrupted else "failed",
                message="interrupted" if interrupted else str(error),
            ),
            display,
            places,
            may_fail=True,
        )
        raise
    display.finish(status, places)
    _write_summary(config, status, display, places)
    if status.status == "stopped":
        return _STOPPED
    if status.status != "finished":
        raise JobFailedError(status.message or f"the job ended as {status.status!r}")
    return 0


def _run(config: JobConfig, display: Display, places: dict[str, Path]) -> JobStatus:
    """Run the job where its strategy says; note in `places` what it leaves behind."""
    for name in ("output", "export_tables", "checkpoint_dir"):
        path = getattr(config.checkpoint, name)
        if path is not None:
            places[name] = path
    if config.training.distribution_strategy is Strategy.LOCAL:
        from elasticdl.cli import local  # the whole worker, and so perhaps a framework

        return local.run(config, display)
    # gRPC's C++ core writes to the terminal what the display says better.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from elasticdl.cli import job_folder, supervisor

    job_dir = job_folder.prepare(config)
    places["job_dir"] = job_dir
    places["logs"] = job_dir / "logs"
    return supervisor.supervise(config, job_dir, display)


@contextlib.contextmanager
def _claims(config: JobConfig, display: Display) -> Iterator[None]:
    """Hold what no other running job may write to within the block."""
    directory = config.checkpoint.checkpoint_dir
    if directory is None:
        yield
        return
    where = f" in {config.cluster.job_dir}" if config.cluster.job_dir else ""
    with claimed(directory, f"{config.cluster.job_name}{where}") as warning:
        if warning:
            display.note(warning)
        yield


def _last(config: JobConfig, display: Display) -> JobStatus:
    if display.last is not None:
        return display.last
    return summary.no_status(config.cluster.job_name, config.training.num_epochs)


def _write_summary(
    config: JobConfig,
    status: JobStatus,
    display: Display,
    places: dict[str, Path],
    may_fail: bool = False,
) -> None:
    path = config.checkpoint.summary
    if path is None:
        return
    try:
        summary.write(path, summary.summarise(status, display.events, places))
    except ElasticdlError:
        if not may_fail:  # the error under way says more
            raise
