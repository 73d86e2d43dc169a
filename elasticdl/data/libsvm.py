"""LIBSVM files: lines of a label and `index:value` pairs, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import LineReader
from elasticdl.data.base import Metadata, Records
from elasticdl.data.copies import readable
from elasticdl.data.files import FileReader
from elasticdl.errors import DataError
from elasticdl.job import Shard

_METADATA = Metadata(
    ("label", "ids", "values"),
    {"label": np.dtype(np.float32), "ids": np.dtype(object), "values": np.dtype(object)},
)


class LibsvmReader:
    """Reads `label index:value index:value ...`; blank lines and what follows a `#` are left out.

    A record has `label` (float32), and of its features `ids` (int64, shape (n,)) and `values`
    (float32, shape (n,)), in the order of the line.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        def open_file(path: str) -> LineReader:
            return LineReader(readable(path, by_content=True), skip_blank=True)

        self._lines = FileReader(paths, open_file)

    @property
    def metadata(self) -> Metadata:
        """The three columns."""
        return _METADATA

    def shards(self) -> list[Shard]:
        """List the files with their numbers of lines."""
        return self._lines.shards()

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the records of a shard."""
        for records in self._lines.read(shard):
            yield Records(records.start, columns=_parse(records, shard.name))


def _parse(records: Records, source: str) -> dict[str, NDArray[np.generic]]:
    lines = [line.partition(b"#")[0] for line in records.values]
    try:
        return _parse_lines(lines)
    except (ValueError, OverflowError):
        for number, line in enumerate(lines, records.start):
            _require_pairs(line, number, source)
        raise


def _parse_lines(lines: list[bytes]) -> dict[str, NDArray[np.generic]]:
    """Parse all numbers of all lines together.

    Raises:
        ValueError: One of them is no number, or out of place.
        OverflowError: An index has more than 63 bits.
    """
    counts = np.array([line.count(b":") for line in lines], dtype=np.int64)
    text = b"\n".join(lines)
    num_colons = np.ones(len(lines) + counts.sum(), dtype=np.int64)
    num_colons[np.cumsum(1 + counts) - (1 + counts)] = 0  # the labels
    found = np.strings.count(np.array(text.split(), dtype=np.bytes_), b":")
    if not np.array_equal(found, num_colons):
        raise ValueError("a label or pair is incomplete")
    tokens = np.array(text.replace(b":", b" ").split(), dtype=np.bytes_)
    if len(tokens) != len(lines) + 2 * counts.sum():
        raise ValueError("a pair is incomplete")
    labels = np.cumsum(1 + 2 * counts) - (1 + 2 * counts)
    is_pair = np.ones(len(tokens), dtype=bool)
    is_pair[labels] = False
    pairs = tokens[is_pair].reshape(-1, 2)
    splits = np.cumsum(counts)[:-1]
    return {
        "label": tokens[labels].astype(np.float32),
        "ids": _rows(pairs[:, 0].astype(np.int64), splits),
        "values": _rows(pairs[:, 1].astype(np.float32), splits),
    }


def _rows(values: NDArray[np.generic], splits: NDArray[np.int64]) -> NDArray[np.object_]:
    rows = np.split(values, splits)
    out = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        out[number] = row
    return out


def _require_pairs(line: bytes, number: int, source: str) -> None:
    label, *pairs = line.split() or [b""]
    try:
        float(label)
    except ValueError:
        found = _shown(label) if label else "a line with a comment alone; remove it"
        raise DataError(
            f"{source}: record {number}: expected a label that is a number, found {found}"
        ) from None
    for pair in pairs:
        index, _, value = pair.partition(b":")
        try:
            np.int64(int(index)), float(value)
        except OverflowError:
            raise DataError(
                f"{source}: record {number}: expected an index below 2^63, found {_shown(index)}"
            ) from None
        except ValueError:
            raise DataError(
                f"{source}: record {number}: expected index:value, found {_shown(pair)}"
            ) from None


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace"))
