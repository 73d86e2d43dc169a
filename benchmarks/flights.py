"""Flights DeepFM: an elasticdl job against plain Keras `fit`, same records, same model file.

    python benchmarks/flights.py [--runs=5]

Each side is run in a fresh process, in turn with the others, on an otherwise idle machine:

- `fit, records`: Keras `fit` on the same records (as TFRecord) through the same `feed`;
- `fit, memory`: Keras `fit` on minibatches that were parsed before and are held in memory;
- `1 + 1`, `1 + 2`: `elasticdl train` with one worker and one or two ps replicas, from RecordIO.

`fit` has every core; so has the job as a whole, whose worker computes with one thread. Figures are
records/s in the steady state: of `fit` without start-up and the first steps, of a job without its
first epoch. The fastest run of each side counts, medians are beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from report import compare, interleave, write_results

from elasticdl import process
from elasticdl._core import RecordReader, TFRecordWriter
from elasticdl.job import JobStatus
from elasticdl.observe.events import read_events
from elasticdl.rpc.client import JobClient

ROOT = Path(__file__).parents[1]
DATA = ROOT / "demo" / "data"
MINIBATCH_SIZE = 512
FIT_STEPS = {"records": 200, "memory": 800}  # some seconds each
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JobRun:
    """What was seen of one job: its speed, and the worker's microseconds a record by stage."""

    records_per_second: float
    stages: dict[str, float]


def main() -> None:
    """Run all sides and write `results/flights.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="of each job")
    args = parser.parse_args()
    records = prepare()
    jobs: dict[int, list[JobRun]] = {1: [], 2: []}

    def job(num_ps: int) -> float:
        run = run_job(num_ps, args.epochs)
        jobs[num_ps].append(run)
        return run.records_per_second

    sides = interleave(
        {
            "fit, records": lambda: run_fit("records", records),
            "fit, memory": lambda: run_fit("memory", records),
            "1 + 1": lambda: job(1),
            "1 + 2": lambda: job(2),
        },
        args.runs,
    )
    rows = [
        compare(f"{what} against Keras fit from {source}", "records/s", sides[what], sides[peer])
        for what in ("1 + 1", "1 + 2")
        for source, peer in (("records", "fit, records"), ("memory", "fit, memory"))
    ]
    stages = {
        f"1 + {num_ps}": max(runs, key=lambda run: run.records_per_second).stages
        for num_ps, runs in jobs.items()
    }
    notes = {"minibatch_size": MINIBATCH_SIZE, "microseconds a record by stage": stages}
    write_results("flights", rows, notes)
    print_stages(stages)


def print_stages(stages: dict[str, dict[str, float]]) -> None:
    """Say where the time of a worker goes; its threads work on several stages at once."""
    print("microseconds a record by stage of the worker, whose four threads work side by side")
    print("(lease, feed | ids, staleness wait, pull | compute, compute wait | push, report):")
    for job, seconds in stages.items():
        parts = sorted(seconds.items(), key=lambda part: -part[1])
        print(f"  {job}: " + ", ".join(f"{name} {value:.1f}" for name, value in parts))


def prepare() -> list[Path]:
    """Make sure that the records are there, also as TFRecord files; return the latter."""
    if not (DATA / "validation").exists():
        command = [sys.executable, "-m", "flights.prepare", f"--output={DATA}"]
        subprocess.run(command, check=True, env=_environment())
    folder = DATA / "tfrecord"
    folder.mkdir(exist_ok=True)
    for path in sorted((DATA / "train").glob("*.recordio")):
        target = folder / f"{path.stem}.tfrecord"
        if not target.exists():
            reader = RecordReader(path)
            with TFRecordWriter(target) as writer:
                writer.write_many(reader.read(0, reader.num_records))
    return sorted(folder.glob("*.tfrecord"))


def run_fit(source: str, files: list[Path]) -> float:
    """Run Keras `fit` in a process of its own; return its records/s."""
    script = ROOT / "benchmarks" / "peers" / "flights_fit.py"
    command = [sys.executable, "-W", "ignore", str(script), f"--source={source}"]
    command += [f"--steps={FIT_STEPS[source]}", f"--minibatch_size={MINIBATCH_SIZE}"]
    command += map(str, files)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_environment())
    return float(json.loads(done.stdout)["records_per_second"])


def run_job(num_ps: int, epochs: int) -> JobRun:
    """Run a job of one worker and `num_ps` ps replicas; return what was seen of it."""
    with tempfile.TemporaryDirectory(prefix="flights-") as folder:
        job_dir, log = Path(folder, "job"), Path(folder, "log")
        with _started(num_ps, epochs, job_dir, log) as running:
            statuses = list(_watch(job_dir, running))
        if running.returncode != 0:
            raise SystemExit(log.read_text())
        return JobRun(_steady_rate(statuses), _stage_microseconds(job_dir, epochs))


@contextmanager
def _started(
    num_ps: int, epochs: int, job_dir: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "elasticdl",
        "train",
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=flights.deepfm.forward",
        f"--training_data={DATA / 'train'}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        f"--num_ps_pods={num_ps}",
        f"--minibatch_size={MINIBATCH_SIZE}",
        f"--num_epochs={epochs}",
        f"--job_dir={job_dir}",
    ]
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment()
        )
        try:
            yield running
            running.wait(DEADLINE_SECONDS)
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait(DEADLINE_SECONDS)


def _watch(job_dir: Path, running: subprocess.Popen[bytes]) -> Iterator[JobStatus]:
    """Yield the pictures of a job, from its master, up to its end."""
    while not (job_dir / "master.json").exists():
        if running.poll() is not None:
            return
        time.sleep(0.1)
    address = json.loads((job_dir / "master.json").read_text())["address"]
    client = JobClient(address, process.read_token(job_dir / process.TOKEN_FILE))
    try:
        yield from client.watch(give_up_seconds=DEADLINE_SECONDS)
    finally:
        client.close()


def _steady_rate(statuses: list[JobStatus]) -> float:
    """Return the records/s from the end of the first epoch to that of the last."""
    total, per_epoch = statuses[-1].records_total, statuses[-1].ledger[0].records
    first = next(s for s in statuses if s.records_done >= per_epoch)
    last = next(s for s in statuses if s.records_done == total)
    return (last.records_done - first.records_done) / (last.seconds - first.seconds)


def _stage_microseconds(job_dir: Path, num_epochs: int) -> dict[str, float]:
    """Return the worker's microseconds a record in each stage, after the first epoch."""
    beats = [e for e in read_events(job_dir) if e["event"] == "progress" and e["num_records"]]
    first = next(b for b in beats if b["num_records"] >= beats[-1]["num_records"] / num_epochs)
    last = next(b for b in beats if b["num_records"] == beats[-1]["num_records"])
    records = last["num_records"] - first["num_records"]
    stages = {"elapsed": last["time"] - first["time"]}
    for stage, seconds in last["stage_seconds"].items():
        stages[stage] = seconds - first["stage_seconds"].get(stage, 0.0)
    return {stage: seconds / records * 1e6 for stage, seconds in stages.items()}


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'model_zoo'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


if __name__ == "__main__":
    main()
