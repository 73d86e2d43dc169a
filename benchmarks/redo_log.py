"""What a redo log costs: records/s of a job whose ps replicas keep one against the same without.

    python benchmarks/redo_log.py [--runs=5] [--workload=flights ...] [--short]

Two ps replicas; the DeepFM of `make demo` with two workers, and the Criteo-shaped one of ten
million ids (`benchmarks/workloads.py`) with four and minibatches of 512 and 4,096. Each side in
fresh processes, in turn with the other; the fastest run of each counts, medians are beside them.
"""

from __future__ import annotations

import argparse
from functools import partial

from jobs import run_job
from report import compare, interleave, write_results
from workloads import CRITEO, FLIGHTS, prepare

LOG = "--ps_redo_mb=4096"
JOBS = {
    "flights": (FLIGHTS, "flights.deepfm.forward", 2, 512, 6),
    "criteo_512": (CRITEO, "criteo.deepfm.forward", 4, 512, 3),
    "criteo_4096": (CRITEO, "criteo.deepfm.forward", 4, 4096, 4),
}


def main() -> None:
    """Measure and write `benchmarks/results/redo_log.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    rows = []
    for name in args.workload or JOBS:
        workload = JOBS[name][0]
        prepare(workload)
        sides = {"with": partial(job, name, LOG), "without": partial(job, name)}
        measured = interleave(sides, 1 if args.short else args.runs)
        what = f"{name}, a redo log against none"
        rows.append(compare(what, "records/s", measured["with"], measured["without"]))
    write_results("redo_log", rows, {}, keep=not args.short)


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
