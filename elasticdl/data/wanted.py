"""What a model file says of the columns of its data, where it says it: those of a `Table`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column that the model is given.

    vocabulary: the words that have ids of their own, if there are any. sep: between the values of
    a list; "" of a single value. is_as_it_is: whether it is a number that nothing scales.
    """

    name: str
    vocabulary: tuple[str, ...] = ()
    sep: str = ""
    is_as_it_is: bool = False


@dataclass(frozen=True, slots=True)
class WantedTable:
    """The columns and the label.

    positive: words of the label that mean 1; empty: it is a number, or a class. file_columns: names
    of a line's fields, where the data has none. missing: a word for no value.
    """

    columns: tuple[WantedColumn, ...]
    label: str
    positive: tuple[str, ...] = ()
    file_columns: tuple[str, ...] = ()
    missing: str = ""
