"""With how many threads a worker computes: a dense and a sparse model, beside Keras `fit`.

    python benchmarks/threads.py [--runs=5]

Each side is run in a fresh process, in turn with the others:

- MNIST's convolutional network (`model_zoo/mnist`) in one process (`Local`), with one thread and
  with `--worker_threads=auto`, and Keras `fit` of the same model file from the same records;
- the flights' DeepFM (`model_zoo/flights`) in one process, with one thread and with all cores.

Figures are records/s between the ends of a short and a longer job, so that no start-up counts; of
`fit` those after its first steps. Digits are random: what is computed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from jobs import DEADLINE_SECONDS, ROOT, environment
from report import compare, interleave, write_results

from elasticdl._core import RecordReader, TFRecordWriter
from flights import DATA, prepare

NUM_DIGITS = 5_000
DIGITS_MINIBATCH_SIZE, FLIGHTS_MINIBATCH_SIZE = 64, 512
SHORT_EPOCHS, DIGITS_EPOCHS, FLIGHTS_EPOCHS = 1, 4, 3


def main() -> None:
    """Run all sides and write `results/threads.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    prepare()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        digits = write_digits(Path(folder))

        def mnist(threads: str) -> float:
            return run_local(
                "mnist.model.custom_model", digits, DIGITS_MINIBATCH_SIZE, DIGITS_EPOCHS, threads
            )

        def deepfm(threads: str) -> float:
            data = DATA / "train"
            return run_local(
                "flights.deepfm.forward", data, FLIGHTS_MINIBATCH_SIZE, FLIGHTS_EPOCHS, threads
            )

        sides = interleave(
            {
                "MNIST, 1": lambda: mnist("1"),
                "MNIST, auto": lambda: mnist("auto"),
                "MNIST, fit": lambda: run_fit(digits / "digits.tfrecord"),
                "flights, auto": lambda: deepfm("auto"),
                f"flights, {cores}": lambda: deepfm(str(cores)),
            },
            args.runs,
        )
    rows = [
        compare("MNIST, auto, against Keras fit", "records/s", sides["MNIST, auto"],
                sides["MNIST, fit"]),
        compare("MNIST, auto, against one thread", "records/s", sides["MNIST, auto"],
                sides["MNIST, 1"]),
        compare(f"flights DeepFM, auto, against {cores} threads", "records/s",
                sides["flights, auto"], sides[f"flights, {cores}"]),
    ]  # fmt: skip
    write_results("threads", rows, {"cores": cores, "minibatch_size": DIGITS_MINIBATCH_SIZE})


def write_digits(folder: Path) -> Path:
    """Write random digits as RecordIO into a folder, and as TFRecord beside them."""
    sys.path.insert(0, str(ROOT / "model_zoo"))
    from mnist.prepare import SIDE, write

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_DIGITS, SIDE, SIDE), np.uint8)
    write((images, rng.integers(0, 10, NUM_DIGITS)), folder)
    reader = RecordReader(folder / "train" / "digits.recordio")
    with TFRecordWriter(folder / "digits.tfrecord") as writer:
        writer.write_many(reader.read(0, reader.num_records))
    (folder / "digits.tfrecord").rename(folder / "train" / "digits.tfrecord")
    return folder / "train"


def run_local(model_def: str, data: Path, minibatch_size: int, epochs: int, threads: str) -> float:
    """Run a short and a longer job in one process; return the records/s between their ends."""
    short, longer = (
        _summary(model_def, data, minibatch_size, count, threads)
        for count in (SHORT_EPOCHS, SHORT_EPOCHS + epochs)
    )
    return (longer["records"] - short["records"]) / (longer["seconds"] - short["seconds"])


def _summary(
    model_def: str, data: Path, minibatch_size: int, epochs: int, threads: str
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        summary = Path(folder, "summary.json")
        command = ["elasticdl", "train", f"--model_zoo={ROOT / 'model_zoo'}"]
        command += [f"--model_def={model_def}", f"--training_data={data}/*.recordio"]
        command += [f"--minibatch_size={minibatch_size}", f"--num_epochs={epochs}"]
        command += [f"--worker_threads={threads}", f"--summary={summary}"]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
            env=environment(),
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout)
        found: dict[str, float] = json.loads(summary.read_text())
        return found


def run_fit(records: Path) -> float:
    """Run Keras `fit` in a process of its own; return its records/s."""
    script = ROOT / "benchmarks" / "peers" / "keras_fit.py"
    command = [sys.executable, "-W", "ignore", str(script), "--model_def=mnist.model"]
    command += ["--model=custom_model"]
    command += ["--source=records", "--warm_up_steps=20", "--steps=200"]
    command += [f"--minibatch_size={DIGITS_MINIBATCH_SIZE}", str(records)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout)["records_per_second"])


if __name__ == "__main__":
    main()
