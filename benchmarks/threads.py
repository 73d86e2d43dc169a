"""The best number of threads for a worker: dense and sparse models with one and two threads.

    python benchmarks/threads.py [--runs=5] [--short]

This is the evidence for `--worker_threads=auto` (`elasticdl/worker/cores.py`). Each run is in a
fresh process, in turn with the others, on an otherwise idle machine:

- the digits (`model_zoo/mnist`: convolutions, no embedding table) in one process (`Local`) with one
  thread, two, and `auto`. The peer is Keras `fit` with TensorFlow's own threads, on the same
  records, with the same `feed` and with a pipeline by hand;
- the flights (DeepFM: two tables of embeddings) in one process with one thread, two, and `auto`;
- the Criteo-shaped DeepFM with two ps replicas and four workers, with one thread each, and two.

Figures are records/s in the steady state. The fastest run of each side counts, and medians are
given too. The aim is that dense models are at least as fast as with `fit`.
"""

from __future__ import annotations

import argparse
from functools import partial

from jobs import run_job, run_local
from report import Row, Side, compare, interleave, write_results
from workloads import CRITEO, DIGITS, FLIGHTS, Workload, fit, prepare

THREADS = ("1", "2", "auto")
DENSE_SIZE, SPARSE_SIZE = 64, 512


def main() -> None:
    """Run all sides and write `results/threads.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one short run of each, not kept")
    args = parser.parse_args()
    for workload in (DIGITS, FLIGHTS, CRITEO):
        prepare(workload)
    runs, seconds, epochs = (1, 5.0, 1) if args.short else (args.runs, 20.0, 4)
    steps = 20 if args.short else 240
    sides = {
        **{
            f"digits, {threads}": partial(local, DIGITS, DENSE_SIZE, threads, seconds)
            for threads in THREADS
        },
        "digits, fit": partial(fit, DIGITS, "records", DENSE_SIZE, steps),
        "digits, fit by hand": partial(fit, DIGITS, "by_hand", DENSE_SIZE, steps),
        **{
            f"flights, {threads}": partial(local, FLIGHTS, SPARSE_SIZE, threads, seconds)
            for threads in THREADS
        },
        **{f"criteo, {threads}": partial(criteo, threads, epochs) for threads in THREADS[:2]},
    }
    write_results(
        "threads",
        rows(interleave(sides, runs)),
        {"minibatch_size": {"digits": DENSE_SIZE, "flights, criteo": SPARSE_SIZE}},
        keep=not args.short,
    )


def rows(measured: dict[str, Side]) -> list[Row]:
    """Compare dense models with `fit` and sparse ones with themselves."""

    def row(what: str, ours: str, peer: str) -> Row:
        return compare(what, "records/s", measured[ours], measured[peer])

    return [
        *(
            row(f"digits, {_said(threads)}, against Keras fit", f"digits, {threads}", "digits, fit")
            for threads in THREADS
        ),
        row("digits, auto, against Keras fit by hand", "digits, auto", "digits, fit by hand"),
        *(
            row(f"flights, {_said(threads)}, against two", f"flights, {threads}", "flights, 2")
            for threads in ("1", "auto")
        ),
        row("Criteo 2 + 4, one thread a worker, against two", "criteo, 1", "criteo, 2"),
    ]


def _said(threads: str) -> str:
    return {"1": "one thread", "2": "two threads"}.get(threads, threads)


def local(workload: Workload, size: int, threads: str, seconds: float) -> float:
    """Run a job in one process for some seconds; return its records/s."""
    return run_local(
        seconds,
        f"--model_def={workload.model_def}.{workload.function}",
        f"--training_data={workload.folder}",
        f"--minibatch_size={size}",
        "--num_epochs=1000",  # it is stopped
        f"--worker_threads={threads}",
    )


def criteo(threads: str, epochs: int) -> float:
    """Run a job with two ps replicas and four workers; return its records/s."""
    return run_job(
        f"--model_def={CRITEO.model_def}.{CRITEO.function}",
        f"--training_data={CRITEO.folder}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_ps_pods=2",
        "--num_workers=4",
        f"--minibatch_size={SPARSE_SIZE}",
        f"--num_epochs={epochs}",
        "--optimizer=sgd",
        f"--worker_threads={threads}",
    ).records_per_second


if __name__ == "__main__":
    main()
