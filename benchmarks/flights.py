"""Flights DeepFM: an elasticdl job against plain Keras `fit`, same records, same model file.

    python benchmarks/flights.py [--runs=5] [--short]

Each side runs in a fresh process, in turn with the others, on an otherwise idle machine:

- `fit, records`: Keras `fit` on the same records (as TFRecord) through the same `feed`;
- `fit, parallel`: the same with parallel calls of `map`, as a user might write them;
- `fit, by hand`: the pipeline of an expert, which first makes batches of records and then calls
  `tf.io.parse_example`;
- `fit, memory`: Keras `fit` on parsed minibatches in memory;
- `1 + 1`, `1 + 2`: `elasticdl train` with one worker and one or two ps replicas, from RecordIO;
- `1 + 1, hybrid`: the same by HybridStrategy with `--max_staleness=2`, which keeps the dense
  parameters in the worker.

`fit` may use all cores, and so may the job as a whole. The worker of the job computes with one
thread. Figures are records/s in the steady state, without start-up and the first steps or seconds.
The fastest run of each side counts, and medians are given too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from jobs import JobRun, print_stages, run_job
from report import compare, interleave, write_results
from workloads import FLIGHTS, fit, prepare

MINIBATCH_SIZE = 512
HYBRID = "1 + 1, hybrid"
JOBS = {  # number of ps replicas, and how they are used
    "1 + 1": (1, ["--distribution_strategy=ParameterServerStrategy"]),
    "1 + 2": (2, ["--distribution_strategy=ParameterServerStrategy"]),
    HYBRID: (1, ["--distribution_strategy=HybridStrategy", "--max_staleness=2"]),
}
FIT_STEPS = {"records": 200, "parallel": 200, "by hand": 800, "memory": 800}  # some seconds each


def main() -> None:
    """Run all sides and write `results/flights.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of each job")
    parser.add_argument("--short", action="store_true", help="one short run of each, not kept")
    args = parser.parse_args()
    prepare(FLIGHTS)
    runs, epochs = (1, 4) if args.short else (args.runs, args.epochs)
    shorter = 10 if args.short else 1
    jobs: dict[str, list[JobRun]] = {what: [] for what in JOBS}

    def job(what: str) -> float:
        run = run_flights(*JOBS[what], epochs)
        jobs[what].append(run)
        return run.records_per_second

    peers = {
        f"fit, {source}": partial(
            fit, FLIGHTS, source.replace(" ", "_"), MINIBATCH_SIZE, steps // shorter
        )
        for source, steps in FIT_STEPS.items()
    }
    sides = interleave({**peers, **{what: partial(job, what) for what in JOBS}}, runs)
    rows = [
        compare(
            f"{what} against Keras fit {'' if source == 'by hand' else 'from '}{source}",
            "records/s",
            sides[what],
            sides[f"fit, {source}"],
        )
        for what in JOBS
        for source in FIT_STEPS
    ]
    rows.append(compare("1 + 1, hybrid, against 1 + 1", "records/s", sides[HYBRID], sides["1 + 1"]))
    stages = {
        what: max(runs, key=lambda run: run.records_per_second).stages
        for what, runs in jobs.items()
    }
    notes = {"minibatch_size": MINIBATCH_SIZE, "microseconds a record by stage": stages}
    write_results("flights", rows, notes, keep=not args.short)
    print_stages(stages)


def run_flights(num_ps: int, words: Sequence[str], epochs: int) -> JobRun:
    """Run a job of one worker and `num_ps` ps replicas."""
    return run_job(
        "--model_def=flights.deepfm.forward",
        f"--training_data={FLIGHTS.folder}",
        *words,
        "--num_workers=1",
        f"--num_ps_pods={num_ps}",
        f"--minibatch_size={MINIBATCH_SIZE}",
        f"--num_epochs={epochs}",
    )


if __name__ == "__main__":
    main()
