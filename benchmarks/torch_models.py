"""The same models in PyTorch and in Keras: one worker beside the framework's plain loop.

    make bench ONLY=torch_models      # or python benchmarks/torch_models.py [--runs=3] [--short]

- the digits (`model_zoo/mnist`: convolutions) in one process (`Local`);
- the flights (`model_zoo/flights`: DeepFM, two tables) in one process, and with one worker and one
  ps replica; in PyTorch with `--torch_compile` too;
- the DeepFM on ten million ids (`model_zoo/criteo`) in PyTorch, likewise (`store_job.py` has it in
  Keras).

The peers run in one process: Keras' `fit`, and the loop of `peers/torch_loop.py`. The loop trains
the flights with sparse and with dense gradients of the tables, and ten million ids with sparse
ones. All sides compute with one thread and read the same records through the model file's `feed`.
Figures are records/s in the steady state. Each run is in a fresh process, in turn with the others
of its model and framework. The fastest run of each side counts. The results are written after each
model, so an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from jobs import environment, run_job, run_local
from report import Row, compare, interleave, write_results
from workloads import CRITEO, DIGITS, FLIGHTS, PEERS, Workload, fit, prepare

DENSE_SIZE, SPARSE_SIZE = 64, 512
MODELS = {
    ("PyTorch", DIGITS): "mnist.model_torch.custom_model",
    ("PyTorch", FLIGHTS): "flights.deepfm_torch.forward",
    ("PyTorch", CRITEO): "criteo.deepfm_torch.forward",
    ("Keras", DIGITS): "mnist.model.custom_model",
    ("Keras", FLIGHTS): "flights.deepfm.forward",
}
SIZES = {DIGITS: DENSE_SIZE, FLIGHTS: SPARSE_SIZE, CRITEO: SPARSE_SIZE}
ONE_THREAD = "--worker_threads=1"


@dataclass(frozen=True, slots=True)
class Length:
    """How long each side runs: seconds of it, epochs of a job with a ps replica, steps of `fit`."""

    runs: int
    seconds: float
    epochs: int
    steps: int


@dataclass(frozen=True, slots=True)
class Group:
    """Sides that take turns, and which of them are compared: (what, ours, peer)."""

    sides: Mapping[str, Callable[[], float]]
    pairs: tuple[tuple[str, str, str], ...]


def main() -> None:
    """Run all sides and write `results/torch_models.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one short run of each, not kept")
    args = parser.parse_args()
    for workload in SIZES:
        prepare(workload)
    length = Length(1, 4.0, 4, 60) if args.short else Length(args.runs, 10.0, 8, 240)
    rows: list[Row] = []
    for group in groups(length):
        measured = interleave(group.sides, length.runs)
        rows += [
            compare(what, "records/s", measured[ours], measured[peer])
            for what, ours, peer in group.pairs
        ]
        write_results(
            "torch_models",
            rows,
            {
                "minibatch_size": {w.model_def.split(".")[0]: SIZES[w] for w in SIZES},
                "threads": 1,
            },
            keep=not args.short,
        )


def groups(length: Length) -> list[Group]:
    """Return what is measured, one group for each model and framework."""
    return [
        digits("PyTorch", partial(loop, DIGITS, length.seconds), length),
        flights_in_torch(length),
        criteo_in_torch(length),
        digits(
            "Keras", partial(fit, DIGITS, "records", DENSE_SIZE, length.steps, threads=1), length
        ),
        flights_in_keras(length),
    ]


def digits(framework: str, plain: Callable[[], float], length: Length) -> Group:
    """Return a job in one process beside a plain loop."""
    ours, peer = f"{framework} digits", f"{framework} digits, plain"
    sides = {ours: partial(local, framework, DIGITS, length.seconds), peer: plain}
    return Group(sides, ((f"{framework}: digits, one process, against a plain loop", ours, peer),))


def flights_in_torch(length: Length) -> Group:
    """Return jobs beside two loops of PyTorch."""
    job = partial(local, "PyTorch", FLIGHTS, length.seconds)
    sides = {
        "PyTorch flights": job,
        "PyTorch flights, compiled": partial(job, "--torch_compile"),
        "PyTorch flights, ps": partial(with_ps, "PyTorch", FLIGHTS, length.epochs),
        "PyTorch flights, sparse loop": partial(loop, FLIGHTS, length.seconds, "--sparse"),
        "PyTorch flights, dense loop": partial(loop, FLIGHTS, length.seconds),
    }
    said = {
        "PyTorch flights": "one process",
        "PyTorch flights, compiled": "one process, --torch_compile",
        "PyTorch flights, ps": "1 worker + 1 ps replica",
    }
    pairs = tuple(
        (
            f"PyTorch: flights, {what}, against a loop with {kind} gradients",
            ours,
            f"PyTorch flights, {kind} loop",
        )
        for ours, what in said.items()
        for kind in ("sparse", "dense")
    )
    return Group(sides, pairs)


def criteo_in_torch(length: Length) -> Group:
    """Return jobs beside a loop of PyTorch; with dense gradients it would take seconds a step."""
    plain = "PyTorch criteo, sparse loop"
    sides = {
        "PyTorch criteo": partial(local, "PyTorch", CRITEO, length.seconds),
        "PyTorch criteo, ps": partial(with_ps, "PyTorch", CRITEO, max(1, length.epochs // 4)),
        plain: partial(loop, CRITEO, length.seconds, "--sparse"),
    }
    said = {"PyTorch criteo": "one process", "PyTorch criteo, ps": "1 worker + 1 ps replica"}
    pairs = tuple(
        (f"PyTorch: ten million ids, {what}, against a loop with sparse gradients", ours, plain)
        for ours, what in said.items()
    )
    return Group(sides, pairs)


def flights_in_keras(length: Length) -> Group:
    """Return jobs beside `fit`."""
    sides = {
        "Keras flights": partial(local, "Keras", FLIGHTS, length.seconds),
        "Keras flights, ps": partial(with_ps, "Keras", FLIGHTS, length.epochs),
        "Keras flights, fit": partial(
            fit, FLIGHTS, "records", SPARSE_SIZE, length.steps, threads=1
        ),
    }
    said = {"Keras flights": "one process", "Keras flights, ps": "1 worker + 1 ps replica"}
    pairs = tuple(
        (f"Keras: flights, {what}, against fit", ours, "Keras flights, fit")
        for ours, what in said.items()
    )
    return Group(sides, pairs)


def flags(framework: str, workload: Workload) -> list[str]:
    """Return what a job of a model is told."""
    return [
        f"--model_def={MODELS[framework, workload]}",
        f"--training_data={workload.folder}",
        f"--minibatch_size={SIZES[workload]}",
        ONE_THREAD,
    ]


def local(framework: str, workload: Workload, seconds: float, *options: str) -> float:
    """Run a job in one process for some seconds; return its records/s."""
    words = [*flags(framework, workload), *options, "--num_epochs=1000"]  # it is stopped
    return run_local(seconds, *words)


def with_ps(framework: str, workload: Workload, epochs: int) -> float:
    """Run a job of one worker and one ps replica; return its records/s."""
    return run_job(
        *flags(framework, workload),
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        "--num_ps_pods=1",
        f"--num_epochs={epochs}",
    ).records_per_second


def loop(workload: Workload, seconds: float, *options: str) -> float:
    """Run the plain loop of PyTorch for some seconds; return its records/s."""
    command = [sys.executable, "-W", "ignore", str(PEERS / "torch_loop.py"), *options]
    command += [f"--model_def={MODELS['PyTorch', workload]}", "--threads=1"]
    command += [f"--minibatch_size={SIZES[workload]}", f"--seconds={seconds}"]
    command += map(str, sorted(workload.folder.glob("*.recordio")))
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])


if __name__ == "__main__":
    main()
