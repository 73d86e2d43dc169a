"""The whole job on ten million ids: elasticdl beside what else could train the same model.

    python benchmarks/store_job.py [--runs=3] [--only=TEXT]

The DeepFM of `model_zoo/criteo` (13 numbers, 26 categories, 10 M ids in all, vectors of 8 and
weights of 1), each side in fresh processes, in turn with the others, on an otherwise idle machine:

- `elasticdl 2 ps + 4 workers`, `1 + 1`: from records on disk, through the user's `feed`;
- `ParameterServerStrategy`: TensorFlow's, 2 workers + 2 parameter servers; `pack 10` runs ten
  steps in one scheduled closure;
- `tf.function`: one process with all cores, rows in variables of which only the touched ones are
  updated;
- `Redis GET/SET`, `MGET/MSET`: rows in 2 Redis servers, 4 workers, optimizer in the worker;
- `Keras fit`: the same model file on the same records;
- `compute alone`: forward and backward with rows given, one thread, times the cores: what no job
  on this machine can exceed.

The peers' minibatches are parsed and in memory (but for `fit`); the job's are not. Figures are
records/s in the steady state. The fastest run of each side counts, medians are beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jobs import ROOT, JobRun, environment, print_stages, run_job
from report import Side, compare, interleave, write_results

from elasticdl._core import RecordReader, TFRecordWriter

DATA = ROOT / "demo" / "criteo"
PEERS = ROOT / "benchmarks" / "peers"
NUM_RECORDS = 1_000_000
EPOCHS = {512: 3, 4096: 4}
SIZES = (512, 4096)
OPTIMIZERS = ("sgd", "adagrad", "adam")
PEER_SECONDS = 8.0
FLIGHTS_DATA = ROOT / "demo" / "data" / "train"
Sides = dict[str, Callable[[], float]]


def main() -> None:
    """Run all sides and write `results/store_job.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="run the sides whose name has this text, or one of several: a|b"
    )
    args = parser.parse_args()
    records = prepare()
    jobs: dict[str, JobRun] = {}
    sides = {
        name: side
        for name, side in all_sides(jobs, records).items()
        if any(part in name for part in args.only.split("|"))
    }
    measured = interleave(sides, args.runs)
    rows = [
        compare(what, "records/s", measured[ours], measured.get(peer))
        for what, ours, peer in comparisons()
        if ours in measured and (peer in measured or not peer)
    ]
    notes = {
        "records": NUM_RECORDS,
        "sides": f"those with {args.only!r} in their name" if args.only else "all",
        "share of the bound reached": shares(measured),
        "microseconds a record by stage": {name: run.stages for name, run in jobs.items()},
    }
    write_results("store_job", rows, notes)
    print_stages({name: run.stages for name, run in jobs.items()})


def all_sides(jobs: dict[str, JobRun], records: Path) -> Sides:
    """Return what can be run, by name; the best run of each job is put into `jobs`."""
    sides: Sides = {}
    for size in SIZES:
        for optimizer in OPTIMIZERS:
            sides[_name("elasticdl 2 + 4", size, optimizer)] = partial(
                job, jobs, _name("elasticdl 2 + 4", size, optimizer), 2, 4, size, optimizer
            )
            sides[_name("ParameterServerStrategy", size, optimizer)] = partial(
                peer, "criteo_tf_ps.py", size, f"--optimizer={optimizer}"
            )
        sides[_name("elasticdl 1 + 1", size, "sgd")] = partial(
            job, jobs, _name("elasticdl 1 + 1", size, "sgd"), 1, 1, size, "sgd"
        )
        sides[_name("tf.function", size, "sgd")] = partial(
            peer, "criteo_tf_function.py", size, "--optimizer=sgd"
        )
        sides[_name("compute alone", size, "none")] = partial(compute_alone, size)
    sides[_name("ParameterServerStrategy pack 10", 512, "sgd")] = partial(
        peer, "criteo_tf_ps.py", 512, "--optimizer=sgd", "--pack=10"
    )
    for style in ("get", "mget"):
        sides[_name(f"Redis {style}", 512, "sgd")] = partial(
            peer, "redis_store.py", 512, "--optimizer=sgd", f"--style={style}"
        )
    sides[_name("Keras fit", 512, "sgd")] = partial(keras_fit, 512, records)
    if FLIGHTS_DATA.exists():
        sides[_name("flights, elasticdl 2 + 2", 512, "adagrad")] = partial(flights_job, jobs)
        sides[_name("flights, Redis mget", 512, "adagrad")] = partial(
            peer,
            "redis_store.py",
            512,
            *("--optimizer=adagrad", "--style=mget", "--model=flights", "--workers=2"),
        )
    return sides


def comparisons() -> list[tuple[str, str, str]]:
    """Return (what, ours, peer) of each line of the report."""
    lines = []
    for size in SIZES:
        for optimizer in OPTIMIZERS:
            ours = _name("elasticdl 2 + 4", size, optimizer)
            lines.append((ours, _name("ParameterServerStrategy", size, optimizer)))
        lines.append((_name("elasticdl 1 + 1", size, "sgd"), _name("tf.function", size, "sgd")))
        lines.append((_name("elasticdl 2 + 4", size, "sgd"), _name("compute alone", size, "none")))
    job = _name("elasticdl 2 + 4", 512, "sgd")
    lines.append((job, _name("ParameterServerStrategy pack 10", 512, "sgd")))
    lines += [(job, _name(f"Redis {style}", 512, "sgd")) for style in ("get", "mget")]
    lines.append((_name("elasticdl 1 + 1", 512, "sgd"), _name("Keras fit", 512, "sgd")))
    lines.append(
        (
            _name("flights, elasticdl 2 + 2", 512, "adagrad"),
            _name("flights, Redis mget", 512, "adagrad"),
        )
    )
    return [(f"{ours} against {peer}", ours, peer) for ours, peer in lines]


def shares(measured: dict[str, Side]) -> dict[str, float]:
    """Return, for each size, the job's speed as a share of what the cores could compute."""
    found = {}
    for size in SIZES:
        bound = measured.get(_name("compute alone", size, "none"))
        for optimizer in OPTIMIZERS:
            ours = measured.get(_name("elasticdl 2 + 4", size, optimizer))
            if bound is not None and ours is not None:
                share = round(ours.best / bound.best, 3)
                found[_name("elasticdl 2 + 4", size, optimizer)] = share
    return found


def prepare() -> Path:
    """Make sure that the records are there; return a TFRecord file of some of them."""
    if not (DATA / "train").exists():
        command = [sys.executable, "-m", "criteo.prepare", f"--output={DATA / 'train'}"]
        command.append(f"--num_records={NUM_RECORDS}")
        subprocess.run(command, check=True, env=environment())
    tfrecord = DATA / "some.tfrecord"
    if not tfrecord.exists():
        reader = RecordReader(min((DATA / "train").iterdir()))
        with TFRecordWriter(tfrecord) as writer:
            writer.write_many(reader.read(0, 100_000))
    return tfrecord


def job(
    jobs: dict[str, JobRun], name: str, num_ps: int, workers: int, size: int, optimizer: str
) -> float:
    """Run a job; return its records/s."""
    run = run_job(
        "--model_def=criteo.deepfm.forward",
        f"--training_data={DATA / 'train'}",
        "--distribution_strategy=ParameterServerStrategy",
        f"--num_workers={workers}",
        f"--num_ps_pods={num_ps}",
        f"--minibatch_size={size}",
        f"--num_epochs={EPOCHS[size]}",
        f"--optimizer={'optimizer' if optimizer == 'adagrad' else optimizer}",
    )
    return _best(jobs, name, run)


def flights_job(jobs: dict[str, JobRun]) -> float:
    """Run the job of `make demo` with more epochs; return its records/s."""
    run = run_job(
        "--model_def=flights.deepfm.forward",
        f"--training_data={FLIGHTS_DATA}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=2",
        "--num_ps_pods=2",
        "--minibatch_size=512",
        "--num_epochs=6",
    )
    return _best(jobs, _name("flights, elasticdl 2 + 2", 512, "adagrad"), run)


def _best(jobs: dict[str, JobRun], name: str, run: JobRun) -> float:
    if name not in jobs or jobs[name].records_per_second < run.records_per_second:
        jobs[name] = run
    return run.records_per_second


def peer(script: str, size: int, *options: str) -> float:
    """Run a script of `peers/`; return its records/s."""
    command = [sys.executable, "-W", "ignore", str(PEERS / script), *options]
    command += [f"--minibatch_size={size}", f"--seconds={PEER_SECONDS}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment(PEERS))
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])


def compute_alone(size: int) -> float:
    """Return what all cores could compute, each with one thread; plain or by XLA, the faster."""
    options = ("--optimizer=none", "--rows=given", "--threads=1")
    rates = [peer("criteo_tf_function.py", size, *options, *xla) for xla in ((), ("--xla",))]
    return max(rates) * len(os.sched_getaffinity(0))


def keras_fit(size: int, records: Path) -> float:
    """Run `fit` from records; return its records/s."""
    command = [sys.executable, "-W", "ignore", str(PEERS / "keras_fit.py")]
    command += ["--model_def=criteo.deepfm", "--optimizer=sgd", "--source=records"]
    command += [f"--minibatch_size={size}", "--warm_up_steps=4", "--steps=20", str(records)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])


def _name(side: str, size: int, optimizer: str) -> str:
    return f"{side}, {size}, {optimizer}"


if __name__ == "__main__":
    main()
