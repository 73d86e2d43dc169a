"""Calls of earlier Keras that Keras 3 does not have, and what to write instead."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import CodeType, TracebackType

import keras

_SYMBOLIC = "KerasTensor cannot be used as input to a TensorFlow function"
_CALL = re.compile(r"\b(K|backend|keras\.backend|tf(?:\.\w+)*)\.(\w+)\(")
_RENAMED = {
    "batch_dot": "batch_dot",
    "concat": "concatenate",
    "reduce_max": "max",
    "reduce_mean": "mean",
    "reduce_min": "min",
    "reduce_sum": "sum",
    "to_float": "cast",
    "pow": "power",
}
_COLUMNS = (
    "Keras 3 has no feature columns: use layers of elasticdl.preprocessing, or declare the "
    "columns as an elasticdl.preprocessing.tabular.Table"
)


def remedy_of(error: BaseException) -> str:
    """Return the advice for an error of an old call; nothing if no advice is known.

    Begins with "; " and names the line of the model file.
    """
    text = str(error)
    place, line = _place(error.__traceback__)
    if "Argument(s) not recognized: {'lr'" in text:
        return f"; {place}: write learning_rate= instead of lr="
    if re.search(r"has no attribute '(DenseFeatures|feature_column|SequenceFeatures)'", text):
        return f"; {place}: {_COLUMNS}"
    missing = re.search(r"module '[\w.]*backend[\w.]*' has no attribute '(\w+)'", text)
    if missing:
        return f"; {place}: {_instead(missing[1])}{_others(error)}"
    if _SYMBOLIC in text or "object of type 'KerasTensor'" in text:
        calls = [name for _module, name in _CALL.findall(line)]
        return f"; {place}: {_instead(*calls)}{_others(error)}"
    absent = re.search(r'Missing data for input "(input_layer\w*)"', text)
    if absent:
        return (
            "; the inputs of the model have no names of their own: give each that of its feature, "
            "keras.Input(..., name=NAME), or let feed give a tensor instead of a dict"
        )
    return ""


def _others(error: BaseException) -> str:
    """Name the other calls of the same kind that the function has after the line that raised."""
    frame = _own_frame(error.__traceback__)
    if frame is None:
        return ""
    name, code, number = frame
    last = max((line for _a, _b, line in code.co_lines() if line), default=number)
    later = [
        f"{line}: {', '.join(f'{module}.{call}' for module, call in calls)}"
        for line in range(number + 1, last + 1)
        if (calls := _CALL.findall(linecache.getline(name, line)))
        and not all("keras" in module and "backend" not in module for module, _call in calls)
    ]
    if not later:
        return ""
    return f". Look at these lines of the function, too: {'; '.join(later)}"


def _instead(*names: str) -> str:
    """Say what to write instead of functions on symbolic tensors."""
    found = [_RENAMED.get(name, name) for name in names]
    known = [f"keras.ops.{name}" for name in found if hasattr(keras.ops, name)]
    if known:
        return f"write {' and '.join(known)}, which take symbolic tensors"
    return (
        "functions of TensorFlow take no symbolic tensors: write it with keras.ops, or put it into "
        "the call of a keras.layers.Layer"
    )


def _place(traceback: TracebackType | None) -> tuple[str, str]:
    """Return the last line of the user's own code, as FILE:LINE, and its text."""
    frame = _own_frame(traceback)
    if frame is None:
        return "the model file", ""
    name, _code, number = frame
    return f"{name}:{number}", linecache.getline(name, number).strip()


def _own_frame(traceback: TracebackType | None) -> tuple[str, CodeType, int] | None:
    """Return file, code and line of the last frame of the user's own code."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _is_library(code.co_filename):
            found = code.co_filename, code, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def _is_library(filename: str) -> bool:
    # Frames of elasticdl and of installed packages are none of the model file.
    own = Path(__file__).parents[3]
    return "site-packages" in filename or filename.startswith(("<", f"{own}/"))
