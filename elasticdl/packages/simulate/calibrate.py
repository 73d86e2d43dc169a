"""Runs a user's model for some seconds with one worker, and measures what a minibatch costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticdl.cli.run import ends_in_order
from elasticdl.config import JobConfig
from elasticdl.data.paths import expand_paths
from elasticdl.data.remote import size_of
from elasticdl.errors import ElasticdlError, JobFailedError
from elasticdl.job import Event, Role
from elasticdl.launchers.signals import deferred
from elasticdl.observe.events import FOLDER, read_events
from elasticdl.packages.simulate.calibration import MinibatchUse, Reading, costs_of, use_between
from elasticdl.packages.simulate.costs import Costs
from elasticdl.runtime.proc import RunningThread, busy_seconds, threads_of
from elasticdl.runtime.process import CONFIG_FILE

_SECONDS = 8.0  # to measure for
_START_SECONDS = 180.0  # for the first record of the job
_WARM_UP_SECONDS = 3.0  # the framework compiles
_END_SECONDS = 30.0
_OF_THE_FIRST = 0.95  # of a core: Linux leaves a twentieth to those that come last
_LOOK_SECONDS = 0.2
_SERVES = "connections"  # name of the threads of a ps replica that serve
_SEVERAL = 8  # ps replicas of the second job
_ENDLESS = 1_000_000  # epochs


@dataclass(frozen=True)
class OneWorker:
    """The measurements of a job of one worker.

    start: The seconds of a core until the worker trained.
    record_bytes: The bytes of a record in storage; 0: not known.
    """

    usage: MinibatchUse
    start: float
    minibatch_size: int
    minibatches_per_task: int
    record_bytes: float


def calibrate(
    model: str,
    flags: Sequence[str],
    seconds: float = _SECONDS,
    prefer: Callable[[Path], None] | None = None,
) -> Costs:
    """Run two short jobs, with one ps replica and with several; return what a minibatch costs.

    Args:
        model: The function of a model file, as in `--model_def`.
        flags: Other flags of `elasticdl train`, without those of processes.
        seconds: The time to measure each job.
        prefer: Given a job's folder, gives its processes priority over all others on this machine.
            None: others may use cores too, and the calculation considers what they leave.

    Raises:
        JobFailedError: A job did not train; contains its output.
    """
    flags = [f"--model_def={model}", *flags]
    one, several = (measure(flags, num, seconds, prefer) for num in (1, _SEVERAL))
    return costs_of(
        model,
        one.minibatch_size,
        one.minibatches_per_task,
        one.record_bytes,
        one.start,
        one.usage,
        several.usage,
        _SEVERAL,
    )


def measure(
    flags: Sequence[str], num_ps: int, seconds: float, prefer: Callable[[Path], None] | None
) -> OneWorker:
    """Run a job of one worker for some seconds; return the measurements."""
    with running_job(flags, 1, num_ps) as job_dir:
        if prefer is not None:
            prefer(job_dir)
        before = reading(job_dir)
        time.sleep(seconds)
        after = reading(job_dir)
        cores = len(os.sched_getaffinity(0)) * (1.0 if prefer is None else _OF_THE_FIRST)
        usage = use_between(before, after, cores, is_first=prefer is not None)
        config = JobConfig.read(job_dir / CONFIG_FILE)
        training = config.training
        trained = usage.feed + usage.prepare + usage.compute + usage.commit
        return OneWorker(
            usage=usage,
            start=_start(_beats(job_dir), trained),
            minibatch_size=training.minibatch_size,
            minibatches_per_task=training.num_minibatches_per_task,
            record_bytes=_record_bytes(job_dir, config),
        )


def _start(events: Sequence[Event], trained: float) -> float:
    """Return a worker's work up to its first report, without the work of training."""
    of_worker = [event for event in events if event["role"] == Role.WORKER]
    first = next(event for event in of_worker if _progress([event]))
    usage = next(
        event for event in of_worker if event["event"] == "usage" and event["time"] >= first["time"]
    )
    # The first report comes a heartbeat after the start, when some minibatches are trained already.
    return max(0.0, float(usage["cpu_seconds"]) - trained * int(first["num_minibatches"]))


def _record_bytes(job_dir: Path, config: JobConfig) -> float:
    """Return the bytes of a record in files; 0 if the data is no files."""
    place = config.data.training_data
    files: list[str] = []
    if place and Path(place).is_dir():  # its folders may be classes
        files = [str(path) for path in Path(place).rglob("*") if path.is_file()]
    try:
        num_bytes = sum(map(size_of, files or expand_paths(place)))
    except ElasticdlError:
        return 0.0
    pictures = [event for event in _beats(job_dir) if event["event"] == "picture"]
    if not pictures or not pictures[-1]["records_total"]:
        return 0.0
    records = pictures[-1]["records_total"] / pictures[-1]["num_epochs"]
    return num_bytes / float(records)


@contextlib.contextmanager
def running_job(flags: Sequence[str], num_workers: int, num_ps: int) -> Iterator[Path]:
    """Run a job within a block that begins when all workers train; yield the job's folder.

    Raises:
        JobFailedError: The job did not train; contains its output.
    """
    with ends_in_order(), tempfile.TemporaryDirectory(prefix="elasticdl-calibrate-") as folder:
        job_dir, said = Path(folder, "job"), Path(folder, "said")
        command = [
            *(sys.executable, "-m", "elasticdl.cli.main", "train", "--quiet"),
            "--distribution_strategy=ParameterServerStrategy",
            *(
                f"--num_workers={num_workers}",
                f"--num_ps_pods={num_ps}",
                f"--num_epochs={_ENDLESS}",
            ),
            *("--heartbeat_seconds=0.5", f"--job_dir={job_dir}", *flags),
        ]
        job: subprocess.Popen[bytes] | None = None
        try:
            with said.open("w") as output, deferred():
                job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            _until_it_trains(job, job_dir, said, num_workers)
            yield job_dir
        finally:
            if job is not None:
                _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    # SIGTERM first: the job then ends its own processes in order.
    job.send_signal(signal.SIGTERM)
    try:
        job.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        job.kill()  # its processes end with it
        job.wait()


def _until_it_trains(
    job: subprocess.Popen[bytes], job_dir: Path, said: Path, num_workers: int
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if job.poll() is not None:
            raise JobFailedError(f"calibration: the job ended: {said.read_text().strip()}")
        if len(_progress(_beats(job_dir))) == num_workers:
            # The first steps of a framework are slower than all others.
            time.sleep(_WARM_UP_SECONDS)
            return
        time.sleep(_LOOK_SECONDS)
    raise JobFailedError(f"calibration: the job trained nothing within {_START_SECONDS:.0f} s")


def _beats(job_dir: Path) -> list[Event]:
    return list(read_events(job_dir)) if (job_dir / FOLDER).is_dir() else []


def _progress(events: Sequence[Event]) -> dict[int, tuple[float, int]]:
    """Return each worker's last report: its time, and the number of minibatches trained."""
    found = {}
    for event in events:
        if event["event"] == "progress" and event["num_minibatches"]:
            found[int(event["index"])] = float(event["time"]), int(event["num_minibatches"])
    return found


def reading(job_dir: Path) -> Reading:
    """Read a job right after a worker has reported its progress.

    Raises:
        JobFailedError: The workers send no reports any more.
    """
    before = _progress(_beats(job_dir))
    deadline = time.monotonic() + _START_SECONDS
    # Right after a report its numbers are newest, so the minibatches belong to the moment of the
    # other readings.
    while (progress := _progress(events := _beats(job_dir))) == before:
        if time.monotonic() > deadline:
            raise JobFailedError("calibration: the workers say no longer how far they are")
        time.sleep(0.02)
    pids = {
        (event["role"], event["index"]): int(event["pid"])
        for event in events
        if event["event"] == "opened"
    }

    def threads(role: Role) -> list[RunningThread]:
        return [t for (r, _), pid in pids.items() if r == role for t in threads_of(pid)]

    def serving() -> list[RunningThread]:  # of ps replicas; the others tell the master how it is
        return [thread for thread in threads(Role.PS) if thread.name == _SERVES]

    usage = {
        int(event["index"]): event
        for event in events
        if event["event"] == "usage" and event["role"] == Role.WORKER
    }
    return Reading(
        seconds=max(when for when, _ in progress.values()),
        busy=busy_seconds(),
        worker=threads(Role.WORKER),
        ps=serving(),
        master=threads(Role.MASTER),
        progress=[progress[index] for index in sorted(progress)],
        bytes_sent=sum(float(event["bytes_sent"]) for event in usage.values()),
        bytes_received=sum(float(event["bytes_received"]) for event in usage.values()),
    )
