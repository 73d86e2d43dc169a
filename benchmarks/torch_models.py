"""Models in PyTorch: one worker beside a plain loop of PyTorch in one process.

    make bench-torch                # or python benchmarks/torch_models.py [--runs=3] [--short]

- the digits (`model_zoo/mnist/model_torch.py`: convolutions) in one process (`Local`), with as many
  threads as the plain loop;
- the flights (`model_zoo/flights/deepfm_torch.py`: DeepFM, two tables) in one process, and with
  one worker and one ps replica, beside the loop with sparse gradients of the tables, and with dense
  ones.

All sides read the same record files through the same `feed`. Figures are records/s in the steady
state, each run in a fresh process, in turn with the others. The fastest run of each side counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial

from jobs import environment, run_job, run_local
from report import Row, Side, compare, interleave, write_results
from workloads import DIGITS, FLIGHTS, PEERS, Workload, prepare

DENSE_SIZE, SPARSE_SIZE = 64, 512
MODELS = {DIGITS: "mnist.model_torch.custom_model", FLIGHTS: "flights.deepfm_torch.forward"}


def main() -> None:
    """Run all sides and write `results/torch_models.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one short run of each, not kept")
    args = parser.parse_args()
    for workload in MODELS:
        prepare(workload)
    runs, seconds, epochs = (1, 4.0, 4) if args.short else (args.runs, 10.0, 8)
    sides = {
        "digits": partial(local, DIGITS, DENSE_SIZE, seconds),
        "digits, loop": partial(loop, DIGITS, DENSE_SIZE, seconds),
        "flights": partial(local, FLIGHTS, SPARSE_SIZE, seconds),
        "flights, ps": partial(with_ps, FLIGHTS, SPARSE_SIZE, epochs),
        "flights, sparse loop": partial(loop, FLIGHTS, SPARSE_SIZE, seconds, "--sparse"),
        "flights, dense loop": partial(loop, FLIGHTS, SPARSE_SIZE, seconds),
    }
    write_results(
        "torch_models",
        rows(interleave(sides, runs)),
        {"minibatch_size": {"digits": DENSE_SIZE, "flights": SPARSE_SIZE}},
        keep=not args.short,
    )


def rows(measured: dict[str, Side]) -> list[Row]:
    """Compare each job with the loop of the same model."""

    def row(what: str, ours: str, peer: str) -> Row:
        return compare(what, "records/s", measured[ours], measured[peer])

    return [
        row("digits, one process, against a plain loop", "digits", "digits, loop"),
        *(
            row(
                f"flights, {said}, against a loop with {kind} gradients",
                side,
                f"flights, {kind} loop",
            )
            for side, said in (
                ("flights", "one process"),
                ("flights, ps", "1 worker + 1 ps replica"),
            )
            for kind in ("sparse", "dense")
        ),
    ]


def flags(workload: Workload, size: int) -> list[str]:
    """Return what a job of a workload is told."""
    return [
        f"--model_def={MODELS[workload]}",
        f"--training_data={workload.folder}",
        f"--minibatch_size={size}",
    ]


def local(workload: Workload, size: int, seconds: float) -> float:
    """Run a job in one process for some seconds; return its records/s."""
    return run_local(seconds, *flags(workload, size), "--num_epochs=1000")  # it is stopped


def with_ps(workload: Workload, size: int, epochs: int) -> float:
    """Run a job of one worker and one ps replica; return its records/s."""
    return run_job(
        *flags(workload, size),
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        "--num_ps_pods=1",
        f"--num_epochs={epochs}",
    ).records_per_second


def loop(workload: Workload, size: int, seconds: float, *options: str) -> float:
    """Run the plain loop for some seconds; return its records/s."""
    command = [sys.executable, "-W", "ignore", str(PEERS / "torch_loop.py"), *options]
    command += [f"--model_def={MODELS[workload]}", f"--minibatch_size={size}"]
    command += [f"--seconds={seconds}", *map(str, sorted(workload.folder.glob("*.recordio")))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])


if __name__ == "__main__":
    main()
