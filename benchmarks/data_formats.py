"""Formats of data: records of Criteo's shape parsed to tensors, and bytes a record in the file.

Each side reads generated lines (40 columns, `model_zoo/criteo/generate.py`) in its format and makes
tensors of minibatches of 512 (by Rust, and of columns, of 4,096, as a job does): label, 13 numbers,
26 categories as text. What is measured is the time that processors spend, of all threads, so that
neighbours disturb it less. Beside that, what `elasticdl data convert` and `data analyze` cost.
TensorFlow has one thread.

    python benchmarks/data_formats.py
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "model_zoo"))

import numpy as np
import tensorflow as tf
from report import asked_for_short, compare, interleave, write_results

from criteo.generate import write
from elasticdl.backends.keras.feed.examples import ParsedByRust
from elasticdl.backends.keras.feed.records import RecordBatch, column_tensor
from elasticdl.backends.keras.model.function import StructuredFunction
from elasticdl.data.open import open_reader

NUM_RECORDS = 50_000
FEW_RECORDS = 200
BATCH = 512
TOGETHER = 4096  # records that a job parses in one call, where minibatches are smaller
RUNS = 3
NUMBERS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
EXAMPLE = {
    "label": tf.io.FixedLenFeature([], tf.int64),
    **{name: tf.io.FixedLenFeature([], tf.int64, 0) for name in NUMBERS},
    **{name: tf.io.FixedLenFeature([], tf.string, "") for name in CATEGORIES},
}
DEFAULTS = [[0], *[[0]] * 13, *[[""]] * 26]


def main() -> None:
    """Measure and write `benchmarks/results/data_formats.json`."""
    is_short = asked_for_short(__doc__)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    num_records = NUM_RECORDS // 20 if is_short else NUM_RECORDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "lines.txt", num_records)
        costs = convert_all(folder, num_records)
        sides = interleave(parses(folder, num_records), 1 if is_short else RUNS)
        sizes = {
            path.name: sum(file.stat().st_size for file in path.rglob("part-*")) / num_records
            for path in folder.iterdir()
            if path.is_dir()
        } | {"lines": (folder / "lines.txt").stat().st_size / num_records}
    base = sides["TFRecord, record by record"]
    rows = [
        compare(f"parse {what}, against TFRecord record by record", "records/processor s", s, base)
        for what, s in sides.items()
        if s is not base
    ]
    notes = {
        "records": num_records,
        "batch": BATCH,
        "bytes_per_record": {what: round(size, 1) for what, size in sizes.items()},
        "processor_us_per_record": {what: round(cost, 2) for what, cost in costs.items()},
    }
    write_results("data_formats", rows, notes, keep=not is_short)
    print(notes)


def convert_all(folder: Path, num_records: int) -> dict[str, float]:
    """Write every format; return the processor time of each command, in microseconds a record."""
    commands = {
        f"convert to {name}": ["convert", "lines.txt", name.replace(" ", "-"), *flags]
        for name, flags in {
            "recordio zstd": ["--format=recordio"],
            "recordio none": ["--format=recordio", "--codec=none"],
            "tfrecord": ["--format=tfrecord"],
            "parquet": ["--format=parquet"],
        }.items()
    }
    for name in ("parquet", "recordio-zstd"):
        commands[f"analyze {name}"] = ["analyze", name, "--output=statistics.json"]
    with tempfile.TemporaryDirectory() as name:
        few = Path(name)
        write(few / "lines.txt", FEW_RECORDS)
        return {
            what: (_cost(folder, words) - _cost(few, words)) / (num_records - FEW_RECORDS) * 1e6
            for what, words in commands.items()
        }


def _cost(folder: Path, words: Sequence[str]) -> float:
    """Return the processor time of a command, in seconds. That of few records is to start."""
    began = _children()
    raw = ["--from=criteo"] if words[0] == "convert" else []
    subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "data", *words, *raw],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return _children() - began


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def parses(folder: Path, num_records: int) -> dict[str, Callable[[], float]]:
    """Return what is measured, by name; each returns records a second of processor time."""

    def side(name: str, to_tensors: Callable[[Any], Any], each: int = BATCH) -> Callable[[], float]:
        return lambda: rate(str(folder / name), to_tensors, each, num_records)

    many = [tf.TensorSpec([None], tf.string)]  # traced once, before anything is measured
    single = tf.function(lambda record: tf.io.parse_single_example(record, EXAMPLE))
    batched = tf.function(lambda text: tf.io.parse_example(text, EXAMPLE), many)
    lines = tf.function(lambda text: tf.io.decode_csv(text, DEFAULTS, field_delim="\t"), many)
    batched.get_concrete_function()
    lines.get_concrete_function()

    def one_by_one(values: list[bytes]) -> None:
        dataset = tf.data.Dataset.from_tensor_slices(values).map(single).batch(BATCH)
        for _ in dataset:
            pass

    return {
        "TFRecord, record by record": side("tfrecord", one_by_one, 50 * BATCH),
        "lines": side("lines.txt", lambda values: lines(tf.constant(values))),
        "TFRecord, by minibatch": side("tfrecord", lambda values: batched(tf.constant(values))),
        "RecordIO, by minibatch": side(
            "recordio-none", lambda values: batched(tf.constant(values))
        ),
        "RecordIO zstd, by minibatch": side(
            "recordio-zstd", lambda values: batched(tf.constant(values))
        ),
        "RecordIO zstd, by Rust": side("recordio-zstd", by_rust(), TOGETHER),
        "TFRecord, by Rust": side("tfrecord", by_rust(), TOGETHER),
        "Parquet, columns": side("parquet", tensors_of_columns, TOGETHER),
    }


def by_rust() -> Callable[[list[bytes]], Any]:
    """Return what a job makes of records whose `feed` begins with `parse_example`."""
    spec = tf.TensorSpec([None], tf.string)
    function = StructuredFunction(lambda records: tf.io.parse_example(records, EXAMPLE), spec)
    parsed = ParsedByRust(function)
    return lambda values: parsed(RecordBatch(values, np.arange(len(values))))


def tensors_of_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Make a tensor of each column, as a job does."""
    return {name: column_tensor(column) for name, column in columns.items()}


def rate(path: str, to_tensors: Callable[[Any], Any], each: int, num_records: int) -> float:
    """Return records a second of processor time."""
    reader = open_reader(path)
    gc.collect()
    began = time.process_time()
    done = 0
    for shard in reader.shards():
        waiting: list[bytes] = []
        for records in reader.read(shard):
            done += len(records)
            if records.columns:
                for start in range(0, len(records), each):
                    part = {n: c[start : start + each] for n, c in records.columns.items()}
                    to_tensors(part)
                continue
            waiting += records.values
            while len(waiting) >= each:
                to_tensors(waiting[:each])
                waiting = waiting[each:]
        if waiting:
            to_tensors(waiting)
    seconds = time.process_time() - began
    if done != num_records:
        raise RuntimeError(f"expected {num_records} records, found {done}")
    return done / seconds


if __name__ == "__main__":
    main()
