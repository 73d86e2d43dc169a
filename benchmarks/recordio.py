"""Record files: records a second read and written by one thread, against TensorFlow.

The records are `tf.train.Example` of 20 features, like a table of flights, and small records of 64
bytes. Both sides read the same records from the page cache and check all checksums. Each row of the
results names the final objects. `tensors` is the best case of TensorFlow, which then makes no
Python objects. With `bytes` both sides make a list of Python's bytes. Ours makes bytes in both
cases. Ours has one thread. TensorFlow has one thread for its operations and one for `tf.data`.
Target: 2,000,000 records/s.

    python benchmarks/recordio.py
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import tensorflow as tf
from report import asked_for_short, compare, interleave, write_results

from elasticdl._core import RecordReader, RecordWriter, TFRecordReader, TFRecordWriter
from elasticdl.data.example import encode_examples

NUM_RECORDS = 100_000
NUM_SLOW_RECORDS = 2_000  # for what takes long: one message built at a time
SMALL_BYTES = 64
CHUNK = 4096
RANGE = 10_240  # records of a task: 20 minibatches of 512
RUNS = 15


def main() -> None:
    """Measure and write `benchmarks/results/recordio.json`."""
    is_short = asked_for_short(__doc__)
    runs = 1 if is_short else RUNS
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    columns = flights(NUM_RECORDS)
    records = encode_examples(columns)
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), records)
        sides = interleave(measurements(Path(folder), files, records, columns), runs)
        sizes = {name: path.stat().st_size for name, path in files.items()}
    plain, gzip, python = "TFRecordDataset, tensors", "TFRecordDataset gzip, tensors", "bytes"
    small = "small TFRecordDataset, tensors"
    pairs = [
        ("read RecordIO of 64 bytes, against TFRecord as tensors", "read small RecordIO", small),
        ("read RecordIO, against TFRecord as tensors", "read RecordIO", plain),
        ("read RecordIO, against TFRecord as bytes", "read RecordIO", f"TFRecordDataset, {python}"),
        ("read RecordIO zstd, against TFRecord gzip as tensors", "read RecordIO zstd", gzip),
        ("read RecordIO deflate, against TFRecord gzip as tensors", "read RecordIO deflate", gzip),
        ("read TFRecord with our reader, against tensors", "read TFRecord", plain),
        ("read a task of 10,240 from the middle of RecordIO", "task of RecordIO", "task by skip"),
        ("read a task of 10,240 from the middle of TFRecord", "task of TFRecord", "task by skip"),
        ("write RecordIO, one by one", "write RecordIO", "TFRecordWriter"),
        ("write RecordIO zstd, one by one", "write RecordIO zstd", "TFRecordWriter"),
        ("write TFRecord, one by one", "write TFRecord", "TFRecordWriter"),
        ("encode Example", "encode_examples", "tf.train.Example"),
    ]
    rows = [compare(what, "records/s", sides[ours], sides[peer]) for what, ours, peer in pairs]
    notes = {
        "records": NUM_RECORDS,
        "mean_record_bytes": sum(map(len, records)) / len(records),
        "file_bytes": sizes,
        "threads": 1,
        "page_cache": True,
    }
    write_results("recordio", rows, notes, keep=not is_short)


def flights(num_records: int) -> dict[str, Any]:
    """Columns like those of a flight: 14 whole numbers, two reals, four short texts."""
    generator = np.random.default_rng(0)
    texts = np.array(["UA", "N14228", "EWR", "IAH", "B6", "JFK"], dtype=object)
    columns: dict[str, Any] = {}
    for number in range(14):
        columns[f"number_{number}"] = generator.integers(0, 3000, num_records)
    for number in range(2):
        columns[f"real_{number}"] = generator.random(num_records)
    for number in range(4):
        columns[f"text_{number}"] = texts[generator.integers(0, len(texts), num_records)]
    return columns


def write_files(folder: Path, records: list[bytes]) -> dict[str, Path]:
    """Write the records in every format, and the TFRecord index."""
    files = {codec: folder / f"{codec}.recordio" for codec in ("none", "zstd", "deflate")}
    for codec, path in files.items():
        with RecordWriter(path, codec=codec) as writer:
            writer.write_many(records)
    files["tfrecord"] = folder / "plain.tfrecord"
    with TFRecordWriter(files["tfrecord"]) as writer:
        writer.write_many(records)
    TFRecordReader(files["tfrecord"])
    small = [number.to_bytes(SMALL_BYTES, "little") for number in range(NUM_RECORDS)]
    files["small"], files["small tfrecord"] = folder / "small.recordio", folder / "small.tfrecord"
    with RecordWriter(files["small"]) as writer:
        writer.write_many(small)
    with TFRecordWriter(files["small tfrecord"]) as writer:
        writer.write_many(small)
    files["tfrecord gzip"] = folder / "gzip.tfrecord"
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(files["tfrecord gzip"]), options) as writer:
        for record in records:
            writer.write(record)
    return files


def measurements(
    folder: Path, files: dict[str, Path], records: list[bytes], columns: dict[str, Any]
) -> dict[str, Callable[[], float]]:
    """Return what is measured, by name; each returns records a second."""
    some_columns = {name: column[:NUM_SLOW_RECORDS] for name, column in columns.items()}
    start = NUM_RECORDS // 2
    return {
        "read RecordIO": lambda: rate(lambda: read(RecordReader(files["none"]))),
        "read small RecordIO": lambda: rate(lambda: read(RecordReader(files["small"]))),
        "small TFRecordDataset, tensors": lambda: rate(
            lambda: read_tensors(files["small tfrecord"], "")
        ),
        "read RecordIO zstd": lambda: rate(lambda: read(RecordReader(files["zstd"]))),
        "read RecordIO deflate": lambda: rate(lambda: read(RecordReader(files["deflate"]))),
        "read TFRecord": lambda: rate(lambda: read(TFRecordReader(files["tfrecord"]))),
        "TFRecordDataset, tensors": lambda: rate(lambda: read_tensors(files["tfrecord"], "")),
        "TFRecordDataset gzip, tensors": lambda: rate(
            lambda: read_tensors(files["tfrecord gzip"], "GZIP")
        ),
        "TFRecordDataset, bytes": lambda: rate(lambda: read_tensor_bytes(files["tfrecord"])),
        "task of RecordIO": lambda: rate(
            lambda: len(RecordReader(files["none"]).read(start, start + RANGE)), RANGE
        ),
        "task of TFRecord": lambda: rate(
            lambda: len(TFRecordReader(files["tfrecord"]).read(start, start + RANGE)), RANGE
        ),
        "task by skip": lambda: rate(lambda: read_skipped(files["tfrecord"], start), RANGE),
        "write RecordIO": lambda: rate(lambda: write(RecordWriter(folder / "w"), records)),
        "write RecordIO zstd": lambda: rate(
            lambda: write(RecordWriter(folder / "w", codec="zstd"), records)
        ),
        "write TFRecord": lambda: rate(lambda: write(TFRecordWriter(folder / "w"), records)),
        "TFRecordWriter": lambda: rate(
            lambda: write(tf.io.TFRecordWriter(str(folder / "w")), records)
        ),
        "encode_examples": lambda: rate(lambda: len(encode_examples(columns))),
        "tf.train.Example": lambda: rate(lambda: encode_one_by_one(some_columns), NUM_SLOW_RECORDS),
    }


def rate(work: Callable[[], int], expected: int = NUM_RECORDS) -> float:
    """Return records a second; `work` returns how many it dealt with."""
    gc.collect()
    began = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - began
    if done != expected:
        raise RuntimeError(f"expected {expected} records, found {done}")
    return done / seconds


def read(reader: RecordReader | TFRecordReader) -> int:
    """Read everything in chunks of bytes."""
    done = 0
    while done < reader.num_records:
        done += len(reader.read(done, min(done + CHUNK, reader.num_records)))
    return done


def dataset(path: Path, compression: str) -> Any:
    """TensorFlow's reader, with the one thread that ours has."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    found = tf.data.TFRecordDataset(str(path), compression, buffer_size=1 << 20)
    return found.with_options(options)


def read_tensors(path: Path, compression: str) -> int:
    """Read everything in tensors of as many records as our chunks have."""
    return sum(int(batch.shape[0]) for batch in dataset(path, compression).batch(CHUNK))


def read_tensor_bytes(path: Path) -> int:
    """Read everything in tensors, and take the records out of them."""
    return sum(len(batch.numpy().tolist()) for batch in dataset(path, "").batch(CHUNK))


def read_skipped(path: Path, start: int) -> int:
    """Read a range from the middle, which `tf.data` finds by reading what precedes it."""
    batches = dataset(path, "").skip(start).take(RANGE).batch(CHUNK)
    return sum(int(batch.shape[0]) for batch in batches)


def write(writer: Any, records: list[bytes]) -> int:
    """Write every record by a call of its own."""
    with writer:
        for record in records:
            writer.write(record)
    return len(records)


def encode_one_by_one(columns: dict[str, Any]) -> int:
    """Build a message a record, as TensorFlow's guides show it."""
    names = list(columns)
    done = 0
    for row in zip(*columns.values(), strict=True):
        feature = {name: _feature(value) for name, value in zip(names, row, strict=True)}
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        done += len(example.SerializeToString()) > 0
    return done


def _feature(value: Any) -> Any:
    if isinstance(value, str):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
    if isinstance(value, np.floating):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


if __name__ == "__main__":
    main()
