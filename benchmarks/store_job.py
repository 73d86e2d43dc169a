"""The whole job on ten million ids: elasticdl beside what else could train the same model.

    python benchmarks/store_job.py [--runs=3] [--group=GROUP ...]

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

A group is a minibatch size and an optimizer, or `flights`, the DeepFM of `make demo` against Redis.
The sides of a group run in turn; each group writes `results/store_job_GROUP.json` of its own.
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
from report import compare, interleave, write_results

from elasticdl._core import RecordReader, TFRecordWriter

DATA = ROOT / "demo" / "criteo"
PEERS = ROOT / "benchmarks" / "peers"
NUM_RECORDS = 1_000_000
EPOCHS = {512: 3, 4096: 4}
SIZES = (512, 4096)
OPTIMIZERS = ("sgd", "adagrad", "adam")
PEER_SECONDS = 8.0
FLIGHTS_DATA = ROOT / "demo" / "data"
FLIGHTS = "flights"
GROUPS = (*(f"{size}_{optimizer}" for size in SIZES for optimizer in OPTIMIZERS), FLIGHTS)
Sides = dict[str, Callable[[], float]]


def main() -> None:
    """Run the groups and write a file of results for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="may be repeated; default: all"
    )
    args = parser.parse_args()
    records = prepare()
    for group in args.group or GROUPS:
        jobs: dict[str, JobRun] = {}
        if group == FLIGHTS:
            sides, comparisons = flights_sides(jobs)
        else:
            size, optimizer = group.split("_")
            sides, comparisons = criteo_sides(jobs, int(size), optimizer, records)
        measured = interleave(sides, args.runs)
        rows = [
            compare(f"{ours} against {peer}", "records/s", measured[ours], measured[peer])
            for ours, peer in comparisons
        ]
        stages = {name: run.stages for name, run in jobs.items()}
        write_results(f"store_job_{group}", rows, {"microseconds a record by stage": stages})
        print_stages(stages)


def criteo_sides(
    jobs: dict[str, JobRun], size: int, optimizer: str, records: Path
) -> tuple[Sides, list[tuple[str, str]]]:
    """Return what is run, by name, and who is compared; the best of each job goes to `jobs`."""
    many, single = "elasticdl 2 + 4", "elasticdl 1 + 1"
    options = (f"--optimizer={optimizer}",)
    sides: Sides = {
        many: partial(job, jobs, many, 2, 4, size, optimizer),
        "ParameterServerStrategy": partial(peer, "criteo_tf_ps.py", size, *options),
    }
    comparisons = [(many, "ParameterServerStrategy")]
    if optimizer != "sgd":
        return sides, comparisons
    sides[single] = partial(job, jobs, single, 1, 1, size, optimizer)
    sides["tf.function"] = partial(peer, "criteo_tf_function.py", size, *options)
    sides["compute alone"] = partial(compute_alone, size)
    comparisons += [(single, "tf.function"), (many, "compute alone"), (single, "compute alone")]
    if size == SIZES[0]:
        packed = (*options, "--pack=10")
        sides["ParameterServerStrategy, pack 10"] = partial(peer, "criteo_tf_ps.py", size, *packed)
        comparisons.append((many, "ParameterServerStrategy, pack 10"))
        for style in ("get", "mget"):
            name = f"Redis {style}"
            sides[name] = partial(peer, "redis_store.py", size, *options, f"--style={style}")
            comparisons.append((many, name))
        sides["Keras fit"] = partial(keras_fit, size, records)
        comparisons.append((single, "Keras fit"))
    return sides, comparisons


def flights_sides(jobs: dict[str, JobRun]) -> tuple[Sides, list[tuple[str, str]]]:
    """Return the same for the flights: 2 ps replicas and 2 workers."""
    ours = "elasticdl 2 + 2, flights"
    sides: Sides = {ours: partial(flights_job, jobs, ours)}
    options = ("--optimizer=adagrad", "--model=flights", "--workers=2")
    for style in ("get", "mget"):
        sides[f"Redis {style}, flights"] = partial(
            peer, "redis_store.py", 512, *options, f"--style={style}"
        )
    return sides, [(ours, name) for name in sides if name != ours]


def prepare() -> Path:
    """Make sure that the records are there; return a TFRecord file of some of them."""
    if not (FLIGHTS_DATA / "validation").exists():
        command = [sys.executable, "-m", "flights.prepare", f"--output={FLIGHTS_DATA}"]
        subprocess.run(command, check=True, env=environment())
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


def flights_job(jobs: dict[str, JobRun], name: str) -> float:
    """Run the job of `make demo` with more epochs; return its records/s."""
    run = run_job(
        "--model_def=flights.deepfm.forward",
        f"--training_data={FLIGHTS_DATA / 'train'}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=2",
        "--num_ps_pods=2",
        "--minibatch_size=512",
        "--num_epochs=6",
    )
    return _best(jobs, name, run)


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


if __name__ == "__main__":
    main()
