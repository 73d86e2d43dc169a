"""An error of the user's code says which function raised it, and what it said."""

import pytest

from elasticdl.backends.user_code import no_place, user_code
from elasticdl.errors import DataError, ModelError


def test_error_names_the_function_its_kind_what_it_was_given_and_its_place():
    message = r"^loss\(a, b\) raised ValueError on 3: no such thing \(.*test_user_code.py:\d+\)$"
    with pytest.raises(ModelError, match=message), user_code("loss(a, b)", lambda: " on 3"):
        raise ValueError("no  such\nthing")


def test_end_of_the_message_is_made_of_the_error():
    with (
        pytest.raises(ModelError, match=r"^feed raised KeyError in mode training: 'a'; say b$"),
        user_code("feed", " in mode training", lambda error: "; say b"),
    ):
        raise KeyError("a")


@pytest.mark.parametrize("error", [DataError("record 3"), KeyboardInterrupt(), SystemExit(1)])
def test_what_is_said_already_and_what_ends_a_program_passes(error):
    with pytest.raises(type(error)) as raised, user_code("feed", after=no_place):
        raise error
    assert raised.value is error
