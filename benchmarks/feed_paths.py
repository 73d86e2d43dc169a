"""The Criteo-shaped job by the path that its records take, and by stage.

    python benchmarks/feed_paths.py --runs=3

The DeepFM of `model_zoo/criteo` (minibatches of 512, SGD, 2 ps replicas, 4 workers), whose `feed`
begins with `parse_single_example`:

- TensorFlow: its operation parses the records, vectorised;
- Rust: the default;
- columns: a batched feed (`--feed=feed_columns`) on Parquet files of the same records.

Beside it what all cores could compute with rows given, as in `store_job.py`.
"""

from __future__ import annotations

import argparse
from functools import partial

from jobs import ROOT, JobRun, print_stages, run_job
from report import compare, interleave, write_results
from store_job import compute_alone
from workloads import CRITEO, CRITEO_RECORDS, prepare, run_module

SIZE, EPOCHS, WORKERS, PS = 512, 3, 4, 2
COLUMNS = CRITEO.folder.with_name("train-parquet")
ABLATED = ROOT / "benchmarks" / "ablated"


def main() -> None:
    """Run the sides in turn and write `results/feed_paths.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    prepare(CRITEO)
    if not COLUMNS.exists():
        records = f"--num_records={CRITEO_RECORDS}"
        run_module("criteo.prepare", COLUMNS, records, "--format=parquet")
    jobs: dict[str, JobRun] = {}
    alone = "compute alone"
    sides = {
        "TensorFlow": partial(job, jobs, "TensorFlow", args.epochs),
        "Rust": partial(job, jobs, "Rust", args.epochs),
        "columns": partial(job, jobs, "columns", args.epochs),
        alone: partial(compute_alone, SIZE),
    }
    measured = interleave(sides, 1 if args.short else args.runs)
    rows = [
        compare(f"{ours} against {peer}", "records/s", measured[ours], measured[peer])
        for ours, peer in (
            ("Rust", "TensorFlow"),
            ("columns", "TensorFlow"),
            ("TensorFlow", alone),
            ("Rust", alone),
            ("columns", alone),
        )
    ]
    stages = {name: run.stages for name, run in jobs.items()}
    notes = {"microseconds a record by stage": stages, "minibatch_size": SIZE}
    write_results("feed_paths", rows, notes, keep=not args.short)
    print_stages(stages)


def job(jobs: dict[str, JobRun], name: str, epochs: int) -> float:
    """Run a job; return its records/s, and keep the best of each in `jobs`."""
    is_ablated, has_columns = name == "TensorFlow", name == "columns"
    run = run_job(
        f"--model_def={'criteo_ablated' if is_ablated else 'criteo.deepfm'}.forward",
        f"--feed={'feed_columns' if has_columns else 'feed'}",
        f"--training_data={COLUMNS if has_columns else CRITEO.folder}",
        "--distribution_strategy=ParameterServerStrategy",
        f"--num_workers={WORKERS}",
        f"--num_ps_pods={PS}",
        f"--minibatch_size={SIZE}",
        "--num_minibatches_per_task=16",  # a row group of the Parquet files
        f"--num_epochs={epochs}",
        "--optimizer=sgd",
        model_zoo=ABLATED if is_ablated else ROOT / "model_zoo",
        variables={"SWITCHED_OFF": "parsing_in_rust"} if is_ablated else None,
    )
    if name not in jobs or jobs[name].records_per_second < run.records_per_second:
        jobs[name] = run
    return run.records_per_second


if __name__ == "__main__":
    main()
