"""Describes the columns that a model file wants, if it says so: the columns of a `Table`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column that the model gets.

    vocabulary: The words that have ids of their own, if there are any.
    sep: The separator between the values of a list; "" for a single value.
    is_as_it_is: Whether it is a number that is not scaled.
    is_hashed: Whether its words get ids without a vocabulary.
    """

    name: str
    vocabulary: tuple[str, ...] = ()
    sep: str = ""
    is_as_it_is: bool = False
    is_hashed: bool = False


@dataclass(frozen=True, slots=True)
class WantedTable:
    """The wanted columns and the label.

    positive: The words of the label that mean 1; empty: the label is a number or a class.
    file_columns: The names of a line's fields, if the data has none.
    missing: A word that stands for no value.
    """

    columns: tuple[WantedColumn, ...]
    label: str
    positive: tuple[str, ...] = ()
    file_columns: tuple[str, ...] = ()
    missing: str = ""
