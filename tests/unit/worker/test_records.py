"""Minibatches of a task that say which is the last; the first minibatch of a job."""

import numpy as np
import pytest

from elasticdl.backends.base import Minibatch
from elasticdl.data.open import open_reader
from elasticdl.data.shuffled import ShuffledReader
from elasticdl.errors import DataError, ModelError
from elasticdl.job import Mode
from elasticdl.worker.records import sample_minibatch, with_ends


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_last_minibatch_is_the_last(count):
    made = [Minibatch(np.zeros(1), None, number) for number in range(count)]
    found = [(minibatch.num_records, is_last) for minibatch, is_last in with_ends(iter(made))]
    assert found == [(number, number == count - 1) for number in range(count)]


def test_a_task_without_minibatches_is_refused():
    with pytest.raises(ModelError, match="--deterministic"):
        list(with_ends(iter(())))


class Parser:
    """Parses numbers, and says which record is none."""

    def minibatches(self, records, mode, minibatch_size, seed):
        for chunk in records:
            for number, value in zip(chunk.numbers, chunk.values, strict=True):
                if not value.isdigit():
                    raise DataError(f"record {number} does not parse", int(number))
            yield chunk


@pytest.mark.parametrize(
    ("is_shuffled", "said"),
    [
        (False, r"^\S*b.csv: line 2 \(record 1\): record 1 does not parse$"),
        (True, r"^\S*b.csv: line 2 \(record 1\): record \d+ does not parse$"),
    ],
)
def test_a_record_of_the_first_minibatch_that_does_not_parse_is_named_with_its_file(
    tmp_path, is_shuffled, said
):
    (tmp_path / "b.csv").write_text("1\nx\n3\n")
    reader = open_reader(str(tmp_path))
    if is_shuffled:
        reader = ShuffledReader(reader, seed=1, block_records=1)
    with pytest.raises(DataError, match=said) as caught:
        sample_minibatch(reader, Parser(), Mode.TRAINING, 3)
    assert caught.value.record == 1
