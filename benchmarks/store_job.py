"""The whole job on ten million ids: elasticdl against other systems that train the same model.

    python benchmarks/store_job.py [--runs=5] [--group=GROUP ...] [--short]

The model is the DeepFM of `model_zoo/criteo`: 13 numbers, 26 categories, 10 M ids in all, vectors
of 8 and weights of 1. Each side runs in fresh processes, in turn with the others, on an otherwise
idle machine:

- `elasticdl 2 ps + 4 workers`, `1 + 1`: from records on disk, through the user's `feed`;
- `ParameterServerStrategy`: TensorFlow's, 2 workers + 2 parameter servers; `pack 10` runs ten
  steps in one scheduled closure;
- `tf.function`: one process with all cores. Rows are in variables; only touched rows are updated;
- `Redis GET/SET`, `MGET/MSET`: rows in 2 Redis servers, 4 workers, optimizer in the worker;
- `Keras fit`: the same model file on the same records. Its tables are `keras.layers.Embedding`, and
  its own optimizer trains them. `parallel` has parallel calls of `map`. `by hand` is the pipeline
  of an expert, which first makes batches of records and then calls `tf.io.parse_example`;
- `compute alone`: forward and backward with given rows, one thread, times the number of cores. No
  job on this machine can be faster.

Minibatches of the peers are parsed and in memory, except those of `fit`. The job reads and parses
records. Figures are records/s in the steady state. The fastest run of each side counts, and medians
are given too.

A group is a minibatch size and an optimizer, or `flights`, the DeepFM of `make demo` against Redis.
The sides of a group run in turn. Each group writes its own file `results/store_job_GROUP.json`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

from jobs import JobRun, print_stages, run_job
from report import compare, interleave, write_results
from workloads import CRITEO, FLIGHTS, fit, prepare, run_peer

EPOCHS = {512: 3, 4096: 4}
SIZES = (512, 4096)
OPTIMIZERS = ("sgd", "adagrad", "adam")
FIT_STEPS, FIT_WARM_UP = 20, 4  # each goes over the whole tables
FLIGHTS_GROUP = "flights"
GROUPS = (*(f"{size}_{optimizer}" for size in SIZES for optimizer in OPTIMIZERS), FLIGHTS_GROUP)
Sides = dict[str, Callable[[], float]]


def main() -> None:
    """Run the groups and write a file of results for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="may be repeated; default: all"
    )
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    for workload in (FLIGHTS, CRITEO):
        prepare(workload)
    for group in args.group or GROUPS:
        jobs: dict[str, JobRun] = {}
        if group == FLIGHTS_GROUP:
            sides, comparisons = flights_sides(jobs)
        else:
            size, optimizer = group.split("_")
            sides, comparisons = criteo_sides(jobs, int(size), optimizer)
        measured = interleave(sides, 1 if args.short else args.runs)
        rows = [
            compare(f"{ours} against {peer}", "records/s", measured[ours], measured[peer])
            for ours, peer in comparisons
        ]
        stages = {name: run.stages for name, run in jobs.items()}
        notes = {"microseconds a record by stage": stages}
        write_results(f"store_job_{group}", rows, notes, keep=not args.short)
        print_stages(stages)


def criteo_sides(
    jobs: dict[str, JobRun], size: int, optimizer: str
) -> tuple[Sides, list[tuple[str, str]]]:
    """Return the sides by name and the pairs to compare; `jobs` gets the best run of each job."""
    many, single = "elasticdl 2 + 4", "elasticdl 1 + 1"
    options = (f"--optimizer={optimizer}",)
    sides: Sides = {
        many: partial(job, jobs, many, 2, 4, size, optimizer),
        "ParameterServerStrategy": partial(run_peer, "criteo_tf_ps.py", size, *options),
    }
    comparisons = [(many, "ParameterServerStrategy")]
    if optimizer != "sgd":
        return sides, comparisons
    sides[single] = partial(job, jobs, single, 1, 1, size, optimizer)
    sides["tf.function"] = partial(run_peer, "criteo_tf_function.py", size, *options)
    sides["compute alone"] = partial(compute_alone, size)
    comparisons += [(single, "tf.function"), (many, "compute alone"), (single, "compute alone")]
    if size == SIZES[0]:
        packed = "ParameterServerStrategy, pack 10"
        sides[packed] = partial(run_peer, "criteo_tf_ps.py", size, *options, "--pack=10")
        comparisons.append((many, packed))
        for style in ("get", "mget"):
            name = f"Redis {style}"
            sides[name] = partial(run_peer, "redis_store.py", size, *options, f"--style={style}")
            comparisons.append((many, name))
        for source in ("records", "parallel", "by_hand"):
            name = "Keras fit" if source == "records" else f"Keras fit {source.replace('_', ' ')}"
            sides[name] = partial(fit, CRITEO, source, size, FIT_STEPS, FIT_WARM_UP, optimizer)
            comparisons.append((single, name))
    return sides, comparisons


def flights_sides(jobs: dict[str, JobRun]) -> tuple[Sides, list[tuple[str, str]]]:
    """Return the same for the flights: 2 ps replicas and 2 workers."""
    ours = "elasticdl 2 + 2, flights"
    sides: Sides = {ours: partial(flights_job, jobs, ours)}
    options = ("--optimizer=adagrad", "--model=flights", "--workers=2")
    for style in ("get", "mget"):
        sides[f"Redis {style}, flights"] = partial(
            run_peer, "redis_store.py", 512, *options, f"--style={style}"
        )
    return sides, [(ours, name) for name in sides if name != ours]


def job(
    jobs: dict[str, JobRun], name: str, num_ps: int, workers: int, size: int, optimizer: str
) -> float:
    """Run a job; return its records/s."""
    run = run_job(
        "--model_def=criteo.deepfm.forward",
        f"--training_data={CRITEO.folder}",
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
        f"--training_data={FLIGHTS.folder}",
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


def compute_alone(size: int) -> float:
    """Return what all cores could compute, each with one thread; plain or by XLA, the faster."""
    options = ("--optimizer=none", "--rows=given", "--threads=1")
    rates = [run_peer("criteo_tf_function.py", size, *options, *xla) for xla in ((), ("--xla",))]
    return max(rates) * len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
