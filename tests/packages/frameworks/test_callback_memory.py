"""A callback remembers its attributes from call to call, in whatever worker."""

import json

import numpy as np
import pytest

from elasticdl.backends.base import CallbackNeeds
from elasticdl.errors import ModelError
from elasticdl.job import CallbackCall, Moment, MomentKind
from elasticdl.packages.frameworks.callback_memory import CallbackMemory
from elasticdl.packages.frameworks.callbacks import Callback
from elasticdl.packages.frameworks.job_callbacks import JobCallbacks


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


def test_another_number_of_callbacks_than_at_the_call_before_is_told():
    memory = CallbackMemory()
    made = [Callback(), Callback()]
    called = JobCallbacks(lambda: made, 0.1, lambda one, job: one, memory, CallbackNeeds(""))
    first = called.run(CallbackCall("", None, Moment(MomentKind.TRAIN_BEGIN), 1), is_alone=True)
    made.pop()
    again = CallbackCall(first.state, None, Moment(MomentKind.TRAIN_END), 1)
    with pytest.raises(ModelError, match=r"callbacks\(\) gives 1 .* remembers 2"):
        called.run(again, is_alone=True)
