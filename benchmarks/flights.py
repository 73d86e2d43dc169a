"""Flights DeepFM: an elasticdl job against plain Keras `fit`, same records, same model file.

    python benchmarks/flights.py [--runs=5]

Each side is run in a fresh process, in turn with the others, on an otherwise idle machine:

- `fit, records`: Keras `fit` on the same records (as TFRecord) through the same `feed`;
- `fit, memory`: Keras `fit` on minibatches that were parsed before and are held in memory;
- `1 + 1`, `1 + 2`: `elasticdl train` with one worker and one or two ps replicas, from RecordIO.

`fit` has every core; so has the job as a whole, whose worker computes with one thread. Figures are
records/s in the steady state: of `fit` without start-up and the first steps, of a job without its
first seconds. The fastest run of each side counts, medians are beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from jobs import ROOT, JobRun, environment, print_stages, run_job
from report import compare, interleave, write_results

from elasticdl._core import RecordReader, TFRecordWriter

DATA = ROOT / "demo" / "data"
MINIBATCH_SIZE = 512
FIT_STEPS = {"records": 200, "memory": 800}  # some seconds each


def main() -> None:
    """Run all sides and write `results/flights.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of each job")
    args = parser.parse_args()
    records = prepare()
    jobs: dict[int, list[JobRun]] = {1: [], 2: []}

    def job(num_ps: int) -> float:
        run = run_flights(num_ps, args.epochs)
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


def prepare() -> list[Path]:
    """Make sure that the records are there, also as TFRecord files; return the latter."""
    if not (DATA / "validation").exists():
        command = [sys.executable, "-m", "flights.prepare", f"--output={DATA}"]
        subprocess.run(command, check=True, env=environment())
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
    script = ROOT / "benchmarks" / "peers" / "keras_fit.py"
    command = [sys.executable, "-W", "ignore", str(script), "--model_def=flights.deepfm"]
    command += [f"--source={source}"]
    command += [f"--steps={FIT_STEPS[source]}", f"--minibatch_size={MINIBATCH_SIZE}"]
    command += map(str, files)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout)["records_per_second"])


def run_flights(num_ps: int, epochs: int) -> JobRun:
    """Run a job of one worker and `num_ps` ps replicas."""
    return run_job(
        "--model_def=flights.deepfm.forward",
        f"--training_data={DATA / 'train'}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        f"--num_ps_pods={num_ps}",
        f"--minibatch_size={MINIBATCH_SIZE}",
        f"--num_epochs={epochs}",
    )


if __name__ == "__main__":
    main()
