"""A record that does not parse is found and named; TensorFlow's messages are made readable."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf

from elasticdl.errors import DataError, ModelError
from elasticdl.packages.keras.feed.records import RecordBatch
from elasticdl.packages.keras.types import Nested

# TensorFlow quotes a record that does not parse, and fails to decode its own message if the
# record's bytes are no UTF-8.
RUN_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
_NODES = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:\w+\]|name: *$")
_TRACE = re.compile(r"\s*Traceback \(most recent call last\):.*", re.DOTALL)  # of a py_function
_SAID = re.compile(r".*StringToNumberOp could not correctly convert string: (the \w+ '.*)$")
_NO_NUMBER = re.compile(r"Field \d+ in record \d+ is not a valid \w+: (.*)$")
_PREAMBLE = re.compile(
    r"^Graph execution error: .*?<stack traces unavailable> "
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)


def naming_the_record(
    run: Callable[[RecordBatch], Nested], batch: RecordBatch, name: str
) -> Nested:
    """Return `run(batch)`; if it fails, find the record that does not parse and name it."""
    try:
        return run(batch)
    except RUN_ERRORS as error:
        failure: Exception = error
    suspects = batch
    while len(suspects) > 1:
        middle = len(suspects) // 2
        for half in (suspects.part(0, middle), suspects.part(middle, len(suspects))):
            try:
                run(half)
            except RUN_ERRORS as error:
                failure, suspects = error, half
                break
        else:
            raise ModelError(
                f"{name} gives records that do not fit into one minibatch, though each parses; "
                f"do their shapes differ? {reason(failure)}"
            ) from failure
    number = int(suspects.numbers[0])
    raise DataError(
        f"record {number} does not parse in {name}: {reason(failure)}", number
    ) from failure


def reason(error: UnicodeDecodeError | tf.errors.OpError) -> str:
    """Return TensorFlow's message without the names of its nodes, and shortened."""
    if isinstance(error, UnicodeDecodeError):
        # The error holds the bytes that TensorFlow could not decode: its own message.
        message = error.object.decode("utf-8", "backslashreplace")
    else:
        message = str(error.message)
    text = " ".join(_TRACE.sub("", _NODES.sub(" ", message)).split())
    readable = "".join(c if c.isprintable() else "?" for c in _PREAMBLE.sub("", text))[:300]
    said = _SAID.match(readable)  # by `refused` in preprocessing/words.py
    if said is not None:
        return said[1]
    word = _NO_NUMBER.search(readable)
    if word is None:
        return readable
    return (
        f"{readable} (fields count from 0). In a Table, a word for missing numbers is said by "
        f"missing={word[1]!r}, a column of words is a Category, and a label of words has positive= "
        "or classes="
    )
