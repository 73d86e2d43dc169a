"""Makes the data of benchmarks at the first use, and runs plain Keras `fit` on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jobs import ROOT, environment
from sklearn.datasets import load_digits

from elasticdl._core import RecordReader, TFRecordWriter

PEERS = ROOT / "benchmarks" / "peers"
PEER_SECONDS = 8.0
CRITEO_RECORDS = 1_000_000
CRITEO_FIT_RECORDS = 100_000
DIGIT_COPIES = 11


@dataclass(frozen=True, slots=True)
class Workload:
    """Records, and the model of the zoo that trains on them.

    folder: RecordIO files. model_def: the module; its function is `function`.
    """

    folder: Path
    model_def: str
    function: str = "forward"


FLIGHTS = Workload(ROOT / "demo" / "data" / "train", "flights.deepfm")
CRITEO = Workload(ROOT / "demo" / "criteo" / "train", "criteo.deepfm")
DIGITS = Workload(ROOT / "demo" / "digits" / "train", "mnist.model", "custom_model")


def prepare(workload: Workload) -> None:
    """Make sure that the records are there."""
    if workload.folder.exists():
        return
    if workload is DIGITS:
        write_digits(workload.folder.parent)
    elif workload is CRITEO:
        run_module("criteo.prepare", workload.folder, f"--num_records={CRITEO_RECORDS}")
    else:
        run_module("flights.prepare", workload.folder.parent)


def run_module(name: str, output: Path, *options: str) -> None:
    """Run a script of the zoo that writes records."""
    command = [sys.executable, "-m", name, f"--output={output}", *options]
    subprocess.run(command, check=True, env=environment())


def write_digits(output: Path) -> None:
    """Write scikit-learn's handwritten digits, enlarged to the 28 x 28 of MNIST, several times."""
    sys.path.insert(0, str(ROOT / "model_zoo"))
    from mnist.prepare import write

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8) * (255 / 16)).repeat(3, axis=1).repeat(3, axis=2)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    copies = np.tile(images, (DIGIT_COPIES, 1, 1)), np.tile(labels, DIGIT_COPIES)
    write(copies, output, validation_share=0.01)


def tfrecords(workload: Workload) -> list[Path]:
    """Return TFRecord files of the same records (of Criteo some), for `fit`."""
    folder = workload.folder.parent / "tfrecord"
    folder.mkdir(exist_ok=True)
    sources = sorted(workload.folder.glob("*.recordio"))
    for source in sources[:1] if workload is CRITEO else sources:
        target = folder / f"{source.stem}.tfrecord"
        if not target.exists():
            reader = RecordReader(source)
            count = reader.num_records
            if workload is CRITEO:
                count = min(count, CRITEO_FIT_RECORDS)
            with TFRecordWriter(target) as writer:
                writer.write_many(reader.read(0, count))
    return sorted(folder.glob("*.tfrecord"))


def fit(
    workload: Workload,
    source: str,
    minibatch_size: int,
    steps: int,
    warm_up_steps: int = 40,
    optimizer: str = "optimizer",
    threads: int = 0,
) -> float:
    """Run Keras `fit` in a process of its own; return its records/s. See `peers/keras_fit.py`."""
    command = [sys.executable, "-W", "ignore", str(PEERS / "keras_fit.py")]
    command += [
        f"--model_def={workload.model_def}",
        f"--function={workload.function}",
        f"--optimizer={optimizer}",
        f"--source={source}",
    ]
    command += [f"--minibatch_size={minibatch_size}", f"--steps={steps}", f"--threads={threads}"]
    command += [f"--warm_up_steps={warm_up_steps}", *map(str, tfrecords(workload))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])


def run_peer(script: str, size: int, *options: str) -> float:
    """Run a script of `peers/` that makes its minibatches itself; return its records/s."""
    command = [sys.executable, "-W", "ignore", str(PEERS / script), *options]
    command += [f"--minibatch_size={size}", f"--seconds={PEER_SECONDS}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment(PEERS))
    return float(json.loads(done.stdout.splitlines()[-1])["records_per_second"])
