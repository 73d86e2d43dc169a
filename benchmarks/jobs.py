"""Runs elasticdl jobs for benchmarks, and measures their steady speed and the time of stages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.observe.events import read_events
from scripts.job_lines import records_done

ROOT = Path(__file__).parents[1]
DEADLINE_SECONDS = 600.0
LEAST_SECONDS = 2.0  # of a steady state; workers tell their progress about once a second
Beat = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRun:
    """The measurements of one job.

    records_per_second: Speed of all workers together while all of them were training.
    stages: Microseconds of one worker for a record, by stage. Its threads work in parallel.
    """

    records_per_second: float
    stages: dict[str, float]


def run_job(*options: str) -> JobRun:
    """Run `elasticdl train` with these options to its end, and return its measurements."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        job_dir = Path(folder, "job")
        command = ["elasticdl", "train", f"--model_zoo={ROOT / 'model_zoo'}", *options]
        command.append(f"--job_dir={job_dir}")
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
            env=environment(),
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout)
        return summarise(job_dir)


def run_local(seconds: float, *options: str) -> float:
    """Run `elasticdl train` in one process for some seconds of its steady state; return records/s.

    Such a job has no event log. It prints the exact number of done records every few seconds, and
    this function notes the time of each line. Then it stops the job.
    """
    command = ["elasticdl", "train", f"--model_zoo={ROOT / 'model_zoo'}", *options]
    counts: list[tuple[float, int]] = []
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment(), "PYTHONUNBUFFERED": "1", "COLUMNS": "400"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if done := records_done(line):
                counts.append((time.perf_counter(), done))
                if counts[-1][0] - counts[0][0] >= seconds:
                    process.terminate()
                    break
        else:
            raise SystemExit(f"{''.join(said)}\nended before {seconds} s of training were over")
        for _ in process.stdout:
            pass  # how it ends
    (start, first), (end, last) = counts[0], counts[-1]
    return (last - first) / (end - start)


def environment(*python_path: Path) -> dict[str, str]:
    """Return the environment in which the sides of a benchmark run."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = (ROOT / "model_zoo", *python_path, ROOT, *filter(None, given))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def summarise(job_dir: Path) -> JobRun:
    """Read a job's events; see `JobRun`."""
    beats: defaultdict[int, list[Beat]] = defaultdict(list)
    for event in read_events(job_dir):
        if event["event"] == "progress" and event["num_records"]:
            beats[event["index"]].append(event)
    start = max(worker[0]["time"] for worker in beats.values())
    end = min(_last_growth(worker) for worker in beats.values())
    if end - start < LEAST_SECONDS:
        raise SystemExit(
            f"{job_dir}: its {len(beats)} workers trained together for {end - start:.1f} s, "
            f"expected at least {LEAST_SECONDS}; give the job more epochs"
        )
    records = sum(_at(end, w, _records) - _at(start, w, _records) for w in beats.values())
    stages = {"elapsed": len(beats) * (end - start) / records * 1e6}
    for stage in sorted({name for w in beats.values() for name in w[-1]["stage_seconds"]}):

        def seconds(beat: Beat, stage: str = stage) -> float:
            return float(beat["stage_seconds"].get(stage, 0.0))

        spent = sum(_at(end, w, seconds) - _at(start, w, seconds) for w in beats.values())
        stages[stage] = spent / records * 1e6
    return JobRun(records / (end - start), stages)


def print_stages(stages: Mapping[str, Mapping[str, float]]) -> None:
    """Say where the time of a worker goes; its threads work on several stages at once."""
    print("microseconds a record by stage of a worker, whose four threads work side by side")
    stages_of_threads = "lease, feed | ids, staleness wait, pull | compute, reduce, compute wait"
    print(f"({stages_of_threads} | push, report):")
    for job, seconds in stages.items():
        parts = sorted(seconds.items(), key=lambda part: -part[1])
        print(f"  {job}: " + ", ".join(f"{name} {value:.1f}" for name, value in parts))


def _last_growth(worker: list[Beat]) -> float:
    last = worker[-1]["num_records"]
    return float(next(beat["time"] for beat in worker if beat["num_records"] == last))


def _records(beat: Beat) -> float:
    return float(beat["num_records"])


def _at(time: float, worker: list[Beat], value: Any) -> float:
    """Return a growing value at a time between two progress reports."""
    times = [beat["time"] for beat in worker]
    return float(np.interp(time, times, [value(beat) for beat in worker]))
