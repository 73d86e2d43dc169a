"""Ids of strings are the same whatever holds the strings, and those of the parameter store."""

import numpy as np
import pyarrow
import pytest

from elasticdl._core import keys_of_strings
from elasticdl.data.strings import Strings, concatenate, ids_of_strings
from elasticdl.errors import DataError

WORDS = ["user-42", "", "Zürich", "b\0"]


def test_ids_are_those_of_the_parameter_store():
    expected = keys_of_strings(WORDS)
    assert expected.dtype == np.int64
    assert (expected >= 0).all()
    for held in (
        WORDS,
        [word.encode() for word in WORDS],
        np.array(WORDS, dtype=object),
        Strings(pyarrow.array(WORDS)),
        Strings(pyarrow.array([word.encode() for word in WORDS])),
    ):
        np.testing.assert_array_equal(ids_of_strings(held), expected)


def test_ids_have_the_shape_of_the_strings():
    pairs = np.array([["a", "b"], ["c", "a"], ["b", "b"]])
    ids = ids_of_strings(pairs)
    assert ids.shape == (3, 2)
    assert ids[0, 0] == ids[1, 1] == keys_of_strings(["a"])[0]
    assert ids_of_strings([["a", "b"], ["c", "a"]]).shape == (2, 2)
    assert ids_of_strings([]).shape == (0,)


@pytest.mark.parametrize("missing", [None, 3])
def test_what_is_no_string_is_named(missing):
    with pytest.raises(DataError, match=r"found (NoneType|int) \((None|3)\) as number 1"):
        ids_of_strings(["a", missing])


def test_whole_numbers_are_joined_with_others_only_where_they_stay_what_they_are():
    small, large = np.array([7, 2**53]), np.array([2**53 + 1])
    assert concatenate([small, np.array([0.5])]).tolist() == [7.0, 2.0**53, 0.5]
    for other in (np.array([0.5]), np.array([2**63], np.uint64)):
        with pytest.raises(DataError, match=r"is int64 in some records, 9007199254740993 among"):
            concatenate([large, other])
