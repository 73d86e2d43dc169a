"""Tables larger than a part are sorted by way of files, and never in memory as a whole."""

import tracemalloc

import numpy as np
import pytest

from elasticdl.packages.keras import sorted_rows
from elasticdl.packages.keras.sorted_rows import sort_rows

DIM = 8


def rows_of(keys):
    return (keys[:, None] * np.arange(1, DIM + 1) % 1013).astype(np.float32)


def chunks_of(keys, size):
    for start in range(0, len(keys), size):
        chunk = keys[start : start + size]
        yield chunk, rows_of(chunk)


def shuffled(keys):
    return np.random.default_rng(0).permutation(keys)


KEYS = {
    "none": np.zeros(0, np.int64),
    "one": np.array([5]),
    "small": np.arange(5000),
    "wide": np.arange(5000) * (2**63 // 5001),
    "in order": np.arange(5000),  # the first rows are no sample of the others
    "negative": np.arange(-2500, 2500),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("part_bytes", [1, 2000, 1 << 30])
def test_parts_follow_one_another_in_the_order_of_keys(name, part_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_rows, "PART_BYTES", part_bytes)
    keys = KEYS[name] if name == "in order" else shuffled(KEYS[name])

    found = sort_rows(chunks_of(keys, 300), DIM, tmp_path)

    parts = list(found.parts)
    assert found.num_rows == len(keys)
    found_keys = np.concatenate([part[0] for part in parts])
    np.testing.assert_array_equal(found_keys, np.sort(keys))
    np.testing.assert_array_equal(np.concatenate([p[1] for p in parts]), rows_of(found_keys))
    assert len(parts) > 1 or part_bytes == 1 << 30 or len(keys) < 2
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_table_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_rows, "PART_BYTES", 1 << 20)
    keys = shuffled(np.arange(500_000))
    table_bytes = len(keys) * (8 + 4 * DIM)

    tracemalloc.start()
    num_rows = sum(len(part) for part, _ in sort_rows(chunks_of(keys, 4096), DIM, tmp_path).parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert num_rows == len(keys)
    assert table_bytes > 19 << 20
    assert peak < 6 << 20
