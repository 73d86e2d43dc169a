"""The records of a reader as a table of Arrow: what becomes of features that differ by record."""

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from elasticdl.data.base import Metadata, Records
from elasticdl.data.example import encode_examples
from elasticdl.errors import ConfigError, DataError
from elasticdl.job import Shard
from elasticdl.packages.data_tools.spool import ROW, spool


class Chunks:
    """A reader of given chunks."""

    metadata = Metadata()

    def __init__(self, *chunks):
        self.chunks = chunks

    def shards(self):
        return [Shard("s", 0, sum(len(chunk) for chunk in self.chunks))]

    def read(self, shard):
        yield from self.chunks


def examples(**columns):
    return Records(values=encode_examples(columns))


def spooled(folder, *chunks):
    return spool(Chunks(*chunks), folder, num_threads=2).to_pydict()


def test_one_value_a_record_is_no_list_and_none_is_null(tmp_path):
    found = spooled(tmp_path, examples(x=[[1], [], [3]], t=[b"a", b"b", b"c"]))
    assert found == {"t": [b"a", b"b", b"c"], "x": [1, None, 3], ROW: [0, 1, 2]}


def test_a_feature_becomes_lists_for_all_records_where_one_has_several_values(tmp_path):
    chunks = examples(x=[[1], []]), examples(x=[[2, 3]]), examples(x=[[4]])
    found = spooled(tmp_path, *chunks)
    assert found == {"x": [[1], [], [2, 3], [4]], ROW: [0, 1, 2, 3]}


def test_a_feature_that_comes_later_is_null_before(tmp_path):
    found = spooled(tmp_path, examples(x=[1]), examples(y=[0.5]), examples(x=[2]))
    assert found == {"x": [1, None, 2], ROW: [0, 1, 2], "y": [None, 0.5, None]}


def test_columns_that_have_been_lists_stay_so_for_records_without_them(tmp_path):
    found = spooled(tmp_path, examples(x=[[1, 2]]), examples(y=[1]))
    assert found["x"][0] == [1, 2]
    assert found["x"][1] in (None, [])


def test_whole_and_real_numbers_are_real_and_text_beside_numbers_is_refused(tmp_path):
    found = spooled(tmp_path, examples(x=[1]), examples(x=[0.5]))
    assert found["x"] == [1.0, 0.5]
    with pytest.raises(DataError, match="column 'x' has values of the types int64 and binary"):
        spooled(tmp_path, examples(x=[1]), examples(x=[b"a"]))
    with pytest.raises(DataError, match=r"s: records 0 to 1: column 'x' .* int64 does not hold"):
        spooled(tmp_path, Records(columns={"x": np.array([2**63, None], object)}))


def test_records_that_are_no_examples_are_refused_by_number(tmp_path):
    with pytest.raises(ConfigError, match=r"s: record 0 is not a tf.train.Example"):
        spooled(tmp_path, Records(values=[b"neither"]))
