"""A callback remembers its attributes from call to call, in whatever worker."""

import json

import numpy as np
import pytest

from elasticdl.packages.frameworks.callback_memory import CallbackMemory


class Noting:
    def __init__(self, value=None):
        self.value = value


def remembered(value):
    """Return a value as the next call finds it."""
    state = json.loads(json.dumps(CallbackMemory().of(Noting(value))))
    CallbackMemory().remind(next_one := Noting(), state)
    return next_one.value


@pytest.mark.parametrize("number", [np.float64, np.float32, float])
@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "0.25"])
def test_a_number_is_remembered_whatever_it_is(number, text):
    assert str(float(remembered(number(text)))) == text


@pytest.mark.parametrize(
    "array", [np.array([1 + 2j]), np.array([b"a"]), np.datetime64("2024-01-01")]
)
def test_an_array_that_json_does_not_know_is_no_part_of_the_memory(array):
    memory, callback = CallbackMemory(), Noting(array)
    before = memory.unknown(callback)
    assert before == {"value": array}
    memory.refuse_what_is_forgotten(callback, before)
