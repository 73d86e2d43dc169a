"""Write synthetic records of Criteo's shape as RecordIO files of `tf.train.Example`.

    PYTHONPATH=model_zoo python -m criteo.prepare --output=/tmp/criteo --num_records=500000

The ids of each field follow a zipf law: few ids are frequent, and most ids are very rare. They are
scattered over the range of the field, so frequent ids are not neighbours. The label depends on some
of the numbers and on every fifth field, so there is something to learn. The best possible AUC is
far from 1, as with real clicks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from criteo.fields import NUM_NUMBERS, OFFSETS, SIZES
from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

ZIPF_EXPONENT = 1.05
SCATTER = 2_654_435_761  # a prime above every field's size: rank * SCATTER % size is one to one
CHUNK = 100_000
GROUP = 8192  # rows of a Parquet file's row group
Columns = dict[str, NDArray[np.float32] | NDArray[np.int64]]


def zipf_ranks(rng: np.random.Generator, size: int, count: int) -> NDArray[np.int64]:
    """Draw ranks from 0 to `size` - 1 with probability about (rank + 1) ** -ZIPF_EXPONENT."""
    power = 1.0 - ZIPF_EXPONENT
    uniform = rng.random(count)
    ranks = (1.0 - uniform * (1.0 - (size + 1.0) ** power)) ** (1.0 / power)
    return np.clip(ranks.astype(np.int64) - 1, 0, size - 1)


def make_columns(num_records: int, seed: Sequence[int]) -> Columns:
    """Return numbers (n, 13) float32, ids (n, 26) int64 and label (n, 1) int64."""
    rng = np.random.default_rng(seed)
    numbers = rng.random((num_records, NUM_NUMBERS), np.float32)
    ids = np.empty((num_records, len(SIZES)), np.int64)
    score = numbers[:, :3].sum(axis=1) - 1.5
    for field, (size, offset) in enumerate(zip(SIZES, OFFSETS, strict=True)):
        ranks = zipf_ranks(rng, size, num_records)
        ids[:, field] = ranks * SCATTER % size + offset
        if field % 5 == 0:
            score += (ranks * 7919 % 13 - 6) / 12
    clicked = rng.random(num_records) < 1 / (1 + np.exp(-score))
    return {"numbers": numbers, "ids": ids, "label": clicked.astype(np.int64)[:, None]}


def write(
    folder: Path, num_records: int, num_files: int, seed: int = 0, file_format: str = "recordio"
) -> None:
    """Write `num_records` records to `num_files` files in `folder`, RecordIO or Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = [num_records * (number + 1) // num_files for number in range(num_files)]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        path = folder / f"criteo-{number:02}.{file_format}"
        parts = (
            make_columns(min(CHUNK, end - first), seed=(seed, number, part))
            for part, first in enumerate(range(start, end, CHUNK))
        )
        if file_format == "parquet":
            _write_parquet(path, parts)
            continue
        with RecordWriter(path) as writer:
            for columns in parts:
                writer.write_many(encode_examples(columns))


def _write_parquet(path: Path, parts: Iterable[Columns]) -> None:
    """Write lists of a fixed size, in row groups of the size of a task."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "numbers": pa.list_(pa.float32(), NUM_NUMBERS),
        "ids": pa.list_(pa.int64(), len(SIZES)),
    }
    schema = pa.schema({**kinds, "label": pa.int64()})
    tables = []
    for columns in parts:
        lists = [
            pa.FixedSizeListArray.from_arrays(pa.array(columns[name].ravel()), type=kind)
            for name, kind in kinds.items()
        ]
        label = pa.array(columns["label"].ravel())
        tables.append(pa.Table.from_arrays([*lists, label], schema=schema))
    pq.write_table(pa.concat_tables(tables), path, row_group_size=GROUP, compression="zstd")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--num_records", type=int, default=500_000)
    parser.add_argument("--num_files", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=("recordio", "parquet"), default="recordio")
    args = parser.parse_args()
    write(args.output, args.num_records, args.num_files, args.seed, args.format)
    print(f"{args.num_records} records in {args.num_files} files in {args.output}")


if __name__ == "__main__":
    main()
