"""Write synthetic lines in the raw format of the Criteo Kaggle challenge.

    PYTHONPATH=model_zoo python -m criteo.generate --output=train.txt --num_records=2000000

A line is a label, 13 whole numbers and 26 categories of 8 hexadecimal digits, with tabs between
them. The terms of the real data do not allow copies, so these lines imitate it. Numbers and
categories are missing about as often as there. Numbers are skewed, and one may be negative.
Categories follow a zipf law. The label depends on some numbers and some categories, so there is
something to learn. `.gz` and `.zst` files are compressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from criteo.fields import CRITEO_SIZES, NUM_NUMBERS
from criteo.prepare import zipf_ranks

CHUNK = 100_000
CLICK_LOGIT = -1.35  # about a quarter of the lines are clicks
NUMBERS_MISSING = (0.45, 0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0005, 0.04, 0.45, 0.04, 0.76, 0.22)
CATEGORIES_MISSING = {2: 0.034, 3: 0.034, 5: 0.12, 11: 0.034, 15: 0.034, 18: 0.44, 19: 0.44}
CATEGORIES_MISSING |= {20: 0.034, 21: 0.76, 23: 0.034, 24: 0.44, 25: 0.44}
MEANS_OF_LOGS = (1.0, 2.0, 2.0, 1.5, 7.0, 4.0, 2.0, 2.0, 4.0, 0.3, 1.0, 0.2, 1.5)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)


def make_table(num_records: int, seed: Sequence[int]) -> pa.Table:
    """Return columns label, I1 to I13 (int64) and C1 to C26 (text); missing values are null."""
    rng = np.random.default_rng(seed)
    score = np.full(num_records, CLICK_LOGIT)
    columns: dict[str, pa.Array] = {}
    for field in range(NUM_NUMBERS):
        values, is_missing = _numbers(rng, field, num_records)
        columns[f"I{field + 1}"] = pa.array(values, mask=is_missing)
        effect = 0.35 * np.log1p(np.maximum(values, 0)) - 0.35 * MEANS_OF_LOGS[field]
        score += np.where(is_missing, -0.1, effect) * (1 - 2 * (field % 2)) * (field % 3 == 0)
    for field, size in enumerate(CRITEO_SIZES):
        ranks = zipf_ranks(rng, size, num_records)
        is_missing = rng.random(num_records) < CATEGORIES_MISSING.get(field, 0.0)
        codes = _codes(ranks, field)
        columns[f"C{field + 1}"] = _hexadecimal(codes, is_missing)
        if field % 3 == 1:
            score += np.where(is_missing, 0.0, (codes % 1009 / 504 - 1) * 0.6)
    clicked = rng.random(num_records) < 1 / (1 + np.exp(-score))
    return pa.table({"label": clicked.astype(np.int64), **columns})


def _numbers(
    rng: np.random.Generator, field: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    logs = rng.normal(MEANS_OF_LOGS[field], 1.3, count)
    values = np.expm1(np.maximum(logs, 0)).astype(np.int64)
    if field == 1:
        values -= rng.integers(0, 4, count)
    return values, rng.random(count) < NUMBERS_MISSING[field]


def _codes(ranks: NDArray[np.int64], field: int) -> NDArray[np.uint32]:
    """Return numbers of 32 bits without an order, another for each rank of a field."""
    mixed = (ranks.astype(np.uint64) + np.uint64(field << 25)) * np.uint64(0x9E3779B1)
    return (mixed ^ (mixed >> np.uint64(16))).astype(np.uint32)


def _hexadecimal(codes: NDArray[np.uint32], is_missing: NDArray[np.bool_]) -> pa.StringArray:
    present = codes[~is_missing].astype(">u4")
    digits = _HEX[present.view(np.uint8)]
    ends = np.zeros(len(codes) + 1, dtype=np.int32)
    np.cumsum(8 * ~is_missing, out=ends[1:])
    buffers = [pa.py_buffer(np.packbits(~is_missing, bitorder="little")), pa.py_buffer(ends)]
    return pa.Array.from_buffers(pa.string(), len(codes), [*buffers, pa.py_buffer(digits)])


def write(path: Path, num_records: int, seed: int = 0) -> None:
    """Write a file of `num_records` lines; the same for the same seed."""
    codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with pa.output_stream(path, compression=codec) as stream:
        for part, first in enumerate(range(0, num_records, CHUNK)):
            table = make_table(min(CHUNK, num_records - first), seed=(seed, part))
            csv.write_csv(table, stream, options)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="file")
    parser.add_argument("--num_records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.output, args.num_records, args.seed)
    print(f"{args.num_records} lines: {args.output}")


if __name__ == "__main__":
    main()
