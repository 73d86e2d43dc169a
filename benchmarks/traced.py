"""What a trace costs: records/s of a job that traces every tenth minibatch against one without.

    python benchmarks/traced.py [--runs=5] [--workload=flights ...] [--short]

Two ps replicas and two workers, the DeepFM of `make demo` and the Criteo-shaped one. Each side in
fresh processes, in turn with the other; the fastest run of each counts, medians are beside them.
"""

from __future__ import annotations

import argparse
from functools import partial

from jobs import run_job
from report import compare, interleave, write_results
from workloads import CRITEO, FLIGHTS, prepare

TRACE = "--trace=every=10"
JOBS = {
    "flights": (FLIGHTS, "flights.deepfm.forward", 512, 6),
    "criteo_512": (CRITEO, "criteo.deepfm.forward", 512, 2),
}


def main() -> None:
    """Measure and write `benchmarks/results/traced.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    rows = []
    for name in args.workload or JOBS:
        prepare(JOBS[name][0])
        sides = {"with": partial(job, name, TRACE), "without": partial(job, name)}
        measured = interleave(sides, 1 if args.short else args.runs)
        what = f"{name}, every tenth minibatch traced against none"
        rows.append(compare(what, "records/s", measured["with"], measured["without"]))
    write_results("traced", rows, {}, keep=not args.short)


def job(name: str, *options: str) -> float:
    """Run a job; return its records/s."""
    workload, model, size, epochs = JOBS[name]
    run = run_job(
        f"--model_def={model}",
        f"--training_data={workload.folder}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=2",
        "--num_ps_pods=2",
        f"--minibatch_size={size}",
        f"--num_epochs={epochs}",
        *options,
    )
    return run.records_per_second


if __name__ == "__main__":
    main()
