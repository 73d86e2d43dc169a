"""What model files for earlier Keras call that Keras 3 has not, and what to write instead."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import TracebackType

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
    """Return what to write instead of what raised an error, or nothing where that is not known.

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
        return f"; {place}: {_instead(missing[1])}"
    if _SYMBOLIC in text:
        calls = [name for _module, name in _CALL.findall(line)]
        return f"; {place}: {_instead(*calls)}"
    return ""


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
    place, line = "the model file", ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not _is_library(name):
            number = traceback.tb_lineno
            place, line = f"{name}:{number}", linecache.getline(name, number).strip()
        traceback = traceback.tb_next
    return place, line


def _is_library(filename: str) -> bool:
    own = Path(__file__).parents[3]
    return "site-packages" in filename or filename.startswith(("<", f"{own}/"))
