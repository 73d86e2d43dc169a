"""What a flag costs: records/s of a job with it against the same without.

    python benchmarks/flag_cost.py [--flag=redo_log ...] [--runs=5] [--workload=flights ...]

Two ps replicas; the DeepFM of `make demo` with two workers, and the Criteo-shaped one of ten
million ids (`benchmarks/workloads.py`) with four and minibatches of 512 and 4,096. Each side in
fresh processes, in turn with the other; the fastest run of each counts, medians are beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial

from jobs import run_job
from report import compare, interleave, write_results
from workloads import CRITEO, FLIGHTS, prepare

FLAGS = {
    "redo_log": ("--ps_redo_mb=4096", "a redo log against none"),
    "traced": ("--trace=every=10", "every tenth minibatch traced against none"),
}
JOBS = {
    "flights": (FLIGHTS, "flights.deepfm.forward", 2, 512, 6),
    "criteo_512": (CRITEO, "criteo.deepfm.forward", 4, 512, 3),
    "criteo_4096": (CRITEO, "criteo.deepfm.forward", 4, 4096, 4),
}


def main() -> None:
    """Measure and write `benchmarks/results/redo_log.json`, or `traced.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flag", action="append", choices=FLAGS, help="default: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    for flag in args.flag or FLAGS:
        measure(flag, args.workload or JOBS, 1 if args.short else args.runs, keep=not args.short)


def measure(name: str, workloads: Iterable[str], runs: int, keep: bool) -> None:
    """Measure what one flag costs, and write its file."""
    flag, words = FLAGS[name]
    rows = []
    for workload in workloads:
        prepare(JOBS[workload][0])
        sides = {"with": partial(job, workload, flag), "without": partial(job, workload)}
        measured = interleave(sides, runs)
        rows.append(
            compare(f"{workload}, {words}", "records/s", measured["with"], measured["without"])
        )
    write_results(name, rows, {}, keep=keep)


def job(name: str, *options: str) -> float:
    """Run a job; return its records/s."""
    workload, model, workers, size, epochs = JOBS[name]
    run = run_job(
        f"--model_def={model}",
        f"--training_data={workload.folder}",
        "--distribution_strategy=ParameterServerStrategy",
        f"--num_workers={workers}",
        "--num_ps_pods=2",
        f"--minibatch_size={size}",
        f"--num_epochs={epochs}",
        *options,
    )
    return run.records_per_second


if __name__ == "__main__":
    main()
